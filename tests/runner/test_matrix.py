"""Matrix files: what ships, what is refused, and in which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import matrix
from runner.errors import MatrixError
from runner.matrix import Matrix, Recipe, parse, resolve_recipe


def _one(cell: str) -> str:
    return f"[[cells]]\n{cell}\n"


def test_the_issues_matrix_has_its_rows_and_trial_counts() -> None:
    cells = matrix.load("issue-3863").cells
    first = [(c.variant.text, c.background, c.hold_ms, c.trials) for c in cells[:6]]
    assert first == [
        ("stock", True, 0, 10),
        ("stock", False, 0, 10),
        ("unregistered", True, 0, 10),
        ("owned-stream", True, 0, 10),
        ("owned-stream", True, 20, 6),
        ("stock", True, 20, 6),
    ]


def test_the_issues_matrix_has_the_rows_of_pr_2800() -> None:
    cells = matrix.load("issue-3863").cells[6:]
    assert {str(c.program) for c in cells} == {"softmax-quantize-router"}
    assert [(c.variant.text, c.hold_ms) for c in cells] == [
        ("stock", 0),
        ("ffi13", 0),
        ("ffi13", 20),
        ("ffi13+owned-stream", 0),
        ("ffi13+owned-stream", 20),
    ]
    assert all(c.background for c in cells)


@pytest.mark.parametrize("name", matrix.available())
def test_every_matrix_that_ships_is_valid(name: str) -> None:
    assert matrix.load(name).name == name


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        (
            'variant="stock"\nhold_ms=-5',
            "matrix m, cell 1: hold_ms must be >= 0, got -5",
        ),
        ('variant="stok"', "matrix m, cell 1: unknown variant 'stok'; known: stock"),
        ("trials=3", "matrix m, cell 1: needs a variant"),
        ('variant="stock"\ntrials=0', "trials must be a whole number from 1"),
        ('variant="stock"\ntrials=true', "trials must be a whole number from 1"),
        ('variant="stock"\ntrials=2.5', "trials must be a whole number from 1"),
        ('variant="stock"\nprogram="gemm"', "unknown program 'gemm'; known: norm-act-gemm"),
        ('variant="stock"\nrecipe="fp4"', "unknown recipe 'fp4'; known: auto"),
        ('variant="stock"\nbackground="yes"', "background must be true or false, got 'yes'"),
        ('variant="stock"\nhold=20', "unknown key 'hold'; known: background"),
        ('variant="stock"\nhold_ms=nan', "hold_ms must be a number"),
        (f'variant="stock"\nhold_ms={"9" * 400}', "hold_ms must be a number"),
        ('variant="stock"\nhold_ms=inf', "hold_ms must be <= 60000, got inf"),
        (
            'variant="stock"\nbackground_period_ms=inf',
            "background_period_ms must be <= 1000, got inf",
        ),
        (
            'variant="stock"\nbackground_period_ms=1001',
            "background_period_ms must be <= 1000, got 1001",
        ),
        ('variant="unregistered"\nhold_ms=20', "hold_ms must be 0 with variant 'unregistered'"),
        ('variant="stock"\nname=""', "name must be 1 to 80"),
    ],
)
def test_a_bad_cell_is_named_with_its_value_and_the_way_out(cell: str, sentence: str) -> None:
    with pytest.raises(MatrixError) as refused:
        parse(_one(cell), "m")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cells = 3", "matrix m: needs at least one [[cells]] table"),
        ("", "matrix m: needs at least one [[cells]] table"),
        ("[[cells", "matrix m: not valid TOML"),
        (f"cells = {'9' * 5000}", "matrix m: not valid TOML"),
        (f"cells = {'[' * 5000}", "matrix m: not valid TOML"),
        ('clean_below = 2\n[[cells]]\nvariant="stock"', "clean_below must be between 0 and 1"),
        ('detect = 1\n[[cells]]\nvariant="stock"', "detect must be true or false, got 1"),
        ('colour = "red"\n[[cells]]\nvariant="stock"', "matrix m: unknown key 'colour'"),
        (_one('variant="stock"') * 2, "matrix m, cell 2: name "),
    ],
)
def test_a_bad_matrix_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(MatrixError) as refused:
        parse(text, "m")
    assert sentence in str(refused.value)


def test_an_unknown_matrix_names_those_there_are() -> None:
    with pytest.raises(
        MatrixError, match=r"neither a file nor one of after-fix, issue-3863, quick"
    ):
        matrix.load("isue-3863")


def test_an_unknown_cell_names_those_there_are() -> None:
    with pytest.raises(MatrixError, match=r"no cell 'x'; it has stock, background"):
        matrix.load("quick").only(("x",))


def test_trials_can_be_set_for_every_cell() -> None:
    assert {c.trials for c in matrix.load("issue-3863").with_trials(3).cells} == {3}


@pytest.mark.parametrize("trials", [0, -1, 10**9])
def test_a_senseless_number_of_trials_is_refused(trials: int) -> None:
    with pytest.raises(MatrixError, match="--trials: must be 1 to"):
        matrix.load("quick").with_trials(trials)


def test_cells_without_a_name_get_one_that_says_what_they_are() -> None:
    cell = parse(_one('variant="owned-stream"\nhold_ms=20'), "m").cells[0]
    assert cell.name == "norm-act-gemm/owned-stream/background/hold20ms"


@pytest.mark.parametrize(
    ("capability", "recipe"),
    [
        ((8, 0), Recipe.BF16),
        ((8, 9), Recipe.FP8),
        ((9, 0), Recipe.FP8),
        ((10, 0), Recipe.NVFP4),
        ((12, 0), Recipe.NVFP4),
    ],
)
def test_auto_precision_follows_the_device(capability: tuple[int, int], recipe: Recipe) -> None:
    assert resolve_recipe(Recipe.AUTO, capability) is recipe
    assert resolve_recipe(Recipe.MXFP8, capability) is Recipe.MXFP8


@given(st.text(max_size=400))
def test_any_text_is_a_matrix_or_one_clear_error(text: str) -> None:
    try:
        assert isinstance(parse(text, "m"), Matrix)
    except MatrixError as error:
        assert str(error).startswith("matrix ")


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(["name", "program", "trials", "hold_ms", "recipe", "background"]), json_like)
def test_any_value_of_a_key_is_taken_or_refused_in_one_sentence(key: str, value: object) -> None:
    from runner.matrix import _cell

    try:
        _cell({"variant": "stock", key: value}, "matrix m, cell 1")
    except MatrixError as error:
        assert str(error).startswith("matrix m, cell 1: ")


def test_the_first_answer_is_watched_and_the_issues_matrix_where_that_is_asked_for() -> None:
    assert {name: matrix.load(name).detect for name in matrix.available()} == {
        "after-fix": False, "issue-3863": False, "quick": True,
    }  # fmt: skip
    assert matrix.load("issue-3863").with_detect(True).detect
    assert not matrix.load("quick").with_detect(False).detect
    assert matrix.load("quick").with_detect(None).detect


def test_a_matrix_is_the_same_from_its_data() -> None:
    quick = matrix.load("quick")
    assert matrix.from_data(matrix.as_data(quick)) == quick
    unwatched = quick.with_detect(False)
    assert "detect" not in matrix.as_data(unwatched)
    assert matrix.from_data(matrix.as_data(unwatched)) == unwatched
