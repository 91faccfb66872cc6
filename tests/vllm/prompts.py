"""Natural-language prompts of every length, always the same ones."""

from __future__ import annotations

import random

_OPENINGS = (
    "Early in the morning",
    "After the long winter",
    "When the ferry had left",
    "On the last day of the fair",
    "In a village above the valley",
    "During the second lesson",
    "Before anyone else was awake",
    "At the edge of the old orchard",
    "While the kettle was boiling",
    "Some years after the flood",
)
_WHO = (
    "the station master",
    "a retired sailor",
    "the youngest of the sisters",
    "our neighbour from across the street",
    "a student of geology",
    "the woman who repaired clocks",
    "the doctor's apprentice",
    "two brothers from the coast",
    "the new schoolteacher",
    "an impatient beekeeper",
)
_DID = (
    "found a map folded inside a cookbook",
    "counted the lanterns along the harbour wall",
    "wrote a careful letter to the ministry",
    "tried to explain why bridges sing in the wind",
    "sold the last basket of pears",
    "planted a row of walnut trees",
    "argued about the weight of a church bell",
    "copied the recipe for dark bread",
    "measured the depth of the well with a rope",
    "waited for news about the railway",
)
_THEN = (
    "and told nobody about it.",
    "although the weather was turning.",
    "because the price of wool had fallen again.",
    "until the lamps were lit.",
    "which surprised everyone at the table.",
    "and that is how the story begins.",
    "as if there were no hurry at all.",
    "but the answer came much later.",
    "so the meeting was moved to Thursday.",
    "and the dog slept through all of it.",
)

# Short ones by hand: from one token up, questions, code, other scripts.
SHORT = (
    "Hello",
    "The sun",
    "Once upon a time",
    "The capital of France is",
    "Water boils at a temperature of",
    "My favourite animal is the",
    "List three colours: red,",
    "Q: What is seven times eight?\nA:",
    "def add(a, b):\n    return",
    "Dear Sir or Madam,\n\nI am writing to",
    "Die Hauptstadt von Deutschland ist",
    "To make a good cup of tea, first",
    "The three states of matter are solid, liquid and",
    "1, 1, 2, 3, 5, 8, 13,",
    "Roses are red, violets are blue,",
    "The opposite of hot is",
)


def story(words: int, seed: int) -> str:
    """About `words` words (a token each, roughly 1.2 tokens) of running text that asks to be continued."""
    chance = random.Random(seed)
    text: list[str] = []
    while len(text) < words:
        sentence = f"{chance.choice(_OPENINGS)}, {chance.choice(_WHO)} {chance.choice(_DID)}, {chance.choice(_THEN)}"
        text += sentence.split()
    return " ".join(text[:words]) + ". The next day,"


# Up to more than 2,000 tokens, many around the ends of blocks (128 tokens) and chunks (512) of these servers.
_STORY_WORDS = (20, 25, 27, 30, 40, 50, 60, 75, 90, 100, 105, 110, 115, 120, 130, 140, 150, 180, 210, 215, 250, 300)
_STORY_WORDS += (420, 440, 1800)
STORIES = tuple(story(words, seed) for seed, words in enumerate(_STORY_WORDS))

ALL = SHORT + STORIES

# Prompts that share a long beginning and end differently.
_COMMON = story(260, 1000)
SHARED_PREFIX = tuple(_COMMON + ending for ending in (" nothing", " the mayor", " it rained", " a letter", " he", ""))
