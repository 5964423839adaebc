"""Messages about bad input: the culprit, the reason and the cure."""

from attittud_lab.errors import (
    InputError,
    counted,
    joined,
    nearest,
    needs,
    one_line,
    short,
    unknown,
)


def test_an_unknown_name_is_answered_with_the_nearest_and_all_others():
    error = unknown("strategy", "flipp", ["flip", "multitask"])
    assert isinstance(error, InputError)
    assert "'flipp'. Did you mean 'flip'?" in str(error) and "multitask" in str(error)
    assert "Did you mean" not in str(unknown("strategy", "zzz", ["flip", "multitask"]))


def test_a_name_that_differs_only_in_case_or_blanks_is_the_nearest():
    assert nearest("DOG ", ["dig", "dog"]) == "dog"
    assert nearest("dgo", ["cat", "dog"]) == "dog" and nearest("bird", ["cat", "dog"]) is None


def test_one_thing_is_not_called_by_its_plural():
    assert [counted(count, "file") for count in (0, 1, 2)] == ["0 files", "1 file", "2 files"]
    assert (
        counted(1, "class", "classes") == "1 class"
        and counted(3, "class", "classes") == "3 classes"
    )


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    assert "pip install 'attittud[hub]'" in str(needs("hub", "datasets", "hf: names"))
    assert str(needs(None, "wandb", "that log")).endswith("pip install wandb")


def test_messages_of_other_libraries_are_cut_to_one_line():
    assert one_line(ValueError("two\n   lines")) == "two lines"
    assert one_line(ValueError("abcdef"), most=3) == "abc"
    assert short("a" * 100, most=10) == "a" * 10 + "... (100 characters)"
    assert short("brief") == "brief"


def test_names_are_joined_as_in_a_sentence():
    assert [joined(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
