"""The page of faults is made of the matrix and of what tests say they show."""

import faults
import pytest

MATRIX = "## A. Blocks\nA1 | abort | pattern stays\nA2 | end | nothing is written\n"


def test_a_row_lists_the_tests_that_show_it():
    cc = "// Shows A1, A2.\nTEST(Agent, Ends) {\nTEST_F(Leases, A2Waits) {\nTEST(Agent, Other) {\n"
    py = "# Shows A2.\n@mark\ndef test_it(x):\n"
    fuzz = '// Any bytes. Shows A2.\nextern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data) {\n'
    txt = "# Lost before it came.\n# It comes again. Shows A1.\nworld P\n"
    made = faults.page(
        {
            faults.MATRIX: MATRIX,
            "kvpush/a_test.cc": cc,
            "python/tests/test_b.py": py,
            "tests/fuzz/fuzz_c.cc": fuzz,
            "tests/protocol/c.txt": txt,
        }
    )

    first, second = made.split("**A1** ")[1].split("**A2** ")
    assert "abort: pattern stays" in first
    assert [line for line in first.splitlines() if line.startswith("- ")] == [
        "- Agent.Ends (`kvpush/a_test.cc`)",
        "- It comes again. (`tests/protocol/c.txt`)",
    ]
    assert [line for line in second.splitlines() if line.startswith("- ")] == [
        "- Agent.Ends (`kvpush/a_test.cc`)",
        "- Leases.A2Waits (`kvpush/a_test.cc`)",
        "- test_it (`python/tests/test_b.py`)",
        "- fuzz_c (`tests/fuzz/fuzz_c.cc`)",
    ]


def test_a_row_without_a_test_says_so():
    assert faults.page({faults.MATRIX: MATRIX}).count("- no test yet") == 2


@pytest.mark.parametrize("text", ["// Shows A3.\nTEST(Agent, Ends) {\n", "// Shows A1.\n"])
def test_a_tag_must_name_a_row_and_stand_above_a_test(text):
    found = faults.check({faults.MATRIX: MATRIX, "kvpush/a_test.cc": text})
    assert len(found) == 1 and found[0].startswith("kvpush/a_test.cc: ")


def test_a_page_that_is_not_up_to_date_is_found():
    files = {faults.MATRIX: MATRIX, "kvpush/a_test.cc": "// Shows A1.\nTEST(Agent, Ends) {\n"}
    made = faults.page(files)
    assert faults.check({**files, faults.PAGE: made}) == []
    assert len(faults.check({**files, faults.PAGE: made.replace("Agent.Ends", "Agent.Began")})) == 1


@pytest.mark.parametrize("line", ["A1 | abort", "AA | abort | stays", "A1 | again | stays\nA1 | again | stays"])
def test_a_line_that_is_no_row_is_refused(line):
    with pytest.raises(ValueError, match="no row"):
        faults.read_matrix(f"## A. Blocks\n{line}\n")
