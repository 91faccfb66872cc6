"""The house rules find what they are for, and only that."""

import house
import pytest

RULES = "folder base:\nfolder plan: base\nfolder transport: base\nfolder transport/ucx: base transport\n"
RULES += "folder /apps: *\nvendor ucp/: transport/ucx\n"


def layers(path: str, include: str) -> list[str]:
    return house.layers({house.LAYERS: RULES, path: f"#include {include}\n"})


def test_a_folder_may_include_itself_and_what_its_row_names():
    assert layers("kvpush/plan/plan.cc", '"kvpush/plan/plan.h"') == []
    assert layers("kvpush/plan/plan.cc", '"kvpush/base/error.h"') == []
    assert layers("kvpush/plan/plan.cc", "<vector>") == []


def test_a_folder_may_not_include_what_lies_above_it():
    assert layers("kvpush/base/error.h", '"kvpush/plan/plan.h"') == ["kvpush/base/error.h:1: base may not include plan"]


def test_a_backend_folder_has_a_rule_of_its_own():
    assert layers("kvpush/transport/ucx/ucx.cc", '"kvpush/transport/transport.h"') == []
    assert layers("kvpush/transport/loopback.cc", '"kvpush/transport/ucx/ucx.h"') != []


def test_a_pair_of_files_can_have_a_rule_of_its_own():
    rules = RULES + "folder transport/choice: transport transport/ucx\n"
    include = '#include "kvpush/transport/ucx/ucx.h"\n'
    for name in ("choice.h", "choice.cc", "choice_test.cc"):
        assert house.layers({house.LAYERS: rules, f"kvpush/transport/{name}": include}) == []
    assert house.layers({house.LAYERS: rules, "kvpush/transport/chosen.cc": include}) != []


def test_a_vendor_header_stays_in_its_folder():
    assert layers("kvpush/transport/ucx/ucx.cc", "<ucp/api/ucp.h>") == []
    assert layers("kvpush/plan/plan.cc", "<ucp/api/ucp.h>") != []
    assert layers("apps/main.cc", "<ucp/api/ucp.h>") != []


def test_a_folder_without_a_rule_is_refused():
    assert layers("kvpush/misc/x.cc", "<vector>") == [f"kvpush/misc/x.cc:1: {house.LAYERS} has no rule for this folder"]


def test_an_unreadable_rule_is_refused():
    with pytest.raises(ValueError, match="not a rule"):
        house.Layers.parse("folders base\n")


LABELS = "// One thing.\n//\n// Job: does it.\n// Thread: {}.\n"


@pytest.mark.parametrize(
    "thread", ["value type", "any (immutable)", "any (synchronised by its mutex)", "agent role (role_); others use X"]
)
def test_a_class_with_both_labels_is_fine(thread):
    assert house.class_comments({"kvpush/agent/x.h": LABELS.format(thread) + "class X final : public Y {\n"}) == []


def test_a_class_without_labels_is_found():
    found = house.class_comments({"kvpush/agent/x.h": "// One thing.\nclass X {\n"})
    assert [line.split(": ", 1)[0] for line in found] == ["kvpush/agent/x.h:2"] * 2


def test_a_thread_label_of_another_form_is_found():
    assert house.class_comments({"kvpush/agent/x.h": LABELS.format("whichever") + "class X {\n"}) != []


def test_forward_declarations_and_pure_folders_need_no_labels():
    assert house.class_comments({"kvpush/agent/x.h": "class X;\n", "kvpush/plan/y.h": "class Y {\n"}) == []


@pytest.mark.parametrize("comment", ["// TO" + "DO: later", "// FIX" + "ME", "// close(socket);", "// x->y = 3;"])
def test_leftovers_are_found(comment):
    assert len(house.leftovers({"kvpush/base/x.cc": f"{comment}\n"})) == 1


@pytest.mark.parametrize(
    "comment",
    ["// TO" + "DO(12): later", "// A sentence (with a clause); and more.", "// Invariant: ended by on(event);"],
)
def test_what_is_no_leftover_is_left_alone(comment):
    assert house.leftovers({"kvpush/base/x.cc": f"{comment}\n"}) == []


@pytest.mark.parametrize("line", ["see /ho" + "me/ann/x.log", "cd '/wo" + "rk/kvpush'"])
def test_a_path_of_one_machine_is_found(line):
    assert len(house.machine_paths({"docs/x.md": f"{line}\n"})) == 1


@pytest.mark.parametrize("line", ["GET /kvpush/v1/engine", "/proc/self/maps", "our/home/page", "~/x", "/tmp/x"])
def test_other_paths_are_left_alone(line):
    assert house.machine_paths({"docs/x.md": f"{line}\n"}) == []


@pytest.mark.parametrize("text", ["a", "a\n\n", "a \n", "a\r\n", "a\tb\n"])
def test_untidy_text_is_found(text):
    assert len(house.tidiness({"x.py": text})) == 1


def test_tidy_text_is_left_alone():
    assert house.tidiness({"x.py": "a\nb\n", "empty.txt": "", "Makefile": "a:\n\tb\n"}) == []


def modelled(states_of_parts: str) -> list[str]:
    files = {house.MODEL: "mtype:Part = { Part_kOpen, Part_kQuiescent };"}
    for header, enumeration in house.MODELLED.values():
        states = states_of_parts if enumeration == "PartState" else ""
        files[header] = files.get(header, "") + f"enum class {enumeration} : std::uint8_t {{ {states} }};\n"
    return house.modelled_states(files)


def test_the_model_has_the_states_of_the_code():
    assert modelled("\n  kOpen,  // as kNever is not\n  kQuiescent,\n") == []
    assert len(modelled("kOpen")) == 1
    assert "kLost" in modelled("kOpen, kQuiescent, kLost")[0]
