"""What the C++ scanner finds, what it is not fooled by, and that its edits only insert."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import VariantError
from runner.variants.cpp import Function, Insertion, Source, Span, insert


def function(text: str, name: str = "target") -> Function:
    found = [one for one in Source(text).functions if one.name == name]
    assert len(found) == 1, [one.qualified for one in Source(text).functions]
    return found[0]


def arguments(text: str, name: str) -> list[str]:
    source = Source(text)
    return [source.slice(one) for one in source.invocations(name)[0].arguments]


def test_a_function_has_its_template_header_parameters_and_body() -> None:
    text = (
        "namespace a {\ntemplate <typename... Args>\n"
        "int target(std::function<int(S, Args...)> f, S stream = pick(1, 2),\n"
        "           const Map<int, char> &m, Args... args) {\n  return 1;\n}\n}\n"
    )
    found = function(text)
    assert found.template == "template <typename... Args>"
    assert [(one.name, one.type, one.default) for one in found.parameters] == [
        ("f", "std::function<int(S, Args...)>", ""),
        ("stream", "S", "pick(1, 2)"),
        ("m", "const Map<int, char> &", ""),
        ("args", "Args...", ""),
    ]
    assert text[found.start :].startswith("template")
    assert text[found.body.start : found.body.end] == "{\n  return 1;\n}"


@pytest.mark.parametrize(
    ("declaration", "name", "kind"),
    [
        ("cudaStream_t stream", "stream", "cudaStream_t"),
        ("cudaStream_t /*stream*/", "", "cudaStream_t"),
        ("const cudaStream_t", "", "const cudaStream_t"),
        ("unsigned long", "", "unsigned long"),
        ("xla::ffi::Span<const T>", "", "xla::ffi::Span<const T>"),
        ("[[maybe_unused]] Buffer b", "b", "Buffer"),
        ("Buffer const &b", "b", "Buffer const &"),
        ("char name[16]", "name", "char [16]"),
        ("int (*callback)(int, int)", "callback", "int (*)(int, int)"),
        ("Args &&...args", "args", "Args &&..."),
    ],
)
def test_a_parameter_has_a_name_or_none(declaration: str, name: str, kind: str) -> None:
    (parameter,) = function(f"void target({declaration}) {{}}").parameters
    assert (parameter.name, parameter.type) == (name, kind)


@pytest.mark.parametrize(
    "head",
    [
        "int target(int a)",
        "static inline int target(int a) noexcept(false)",
        "auto target(int a) -> decltype(other(a))",
        "[[nodiscard]] int target(int a) const &",
        'extern "C" Error *target(int a)',
        "API_EXPORT(1) int target(int a)",
        "int target(int a) REQUIRES(mutex)",
        "struct Result target(int a)",
        "std::function<int(char)> target(int a)",
        "template <int N = (3 > 2)>\ntemplate <typename U>\nint Owner<U>::target(int a)",
        "target::target(int a) : x(a), y{1}, z{a}",
        "int *\n#ifdef X\ntarget(int a)\n#endif\n",
    ],
)
def test_a_function_is_found_however_it_is_declared(head: str) -> None:
    found = function(f"int before = 1;\n{head} {{ return 7; }}\nint after;\n")
    assert [one.name for one in found.parameters] == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        "int target(int a);",
        "auto target = [](int a) { return a; };",
        "struct target { int x{3}; };",
        "class ALIGNED(8) target : public Base<decltype(f(1))> { int x; };",
        "enum class target : int { A = f(1), B };",
        "int target[] = {f(1), 2};",
        "int other(int a) { target(a); { target(a); } }",
        "// int target(int a) {}\n",
        "/* int target(int a) {} */",
        'const char *s = "int target(int a) {}";',
        'const char *s = R"x(int target(int a) {} )" )x";',
        "#define MAKE int target(int a) { \\\n  return 1; }\n",
        "#if 0\nint target(int a) {}\n#endif\n",
    ],
)
def test_what_is_no_definition_is_not_taken_for_one(text: str) -> None:
    found = Source(f"{text}\nint last() {{ return 1; }}\n").functions
    assert "target" not in [one.name for one in found]
    assert found[-1].name == "last"


def test_members_are_found_below_access_labels() -> None:
    found = function("class A {\n public:\n  explicit A(int x) : x_{x} {}\n  int target() {}\n};")
    assert found.qualified == "target"


def test_both_branches_of_a_conditional_may_open_the_same_body() -> None:
    text = (
        "#if A\nint target(int a) {\n#else\nint target(long a) {\n#endif\n  f();\n}\nint b() {}\n"
    )
    names = [one.name for one in Source(text).functions]
    assert names == ["target", "b"]


def test_the_else_of_a_dead_branch_counts() -> None:
    assert function("#if 0\n}}} don't ( \n#else\nint target() { g(); }\n#endif\n")


@pytest.mark.parametrize("text", ["(" * 300 + ")" * 300, "namespace a{" * 300 + "}" * 300])
def test_brackets_deeper_than_anyone_writes_are_refused(text: str) -> None:
    # Found before, they took hours of a process that has no deadline, or a traceback.
    with pytest.raises(VariantError, match="brackets in brackets, more than 200 deep"):
        _ = Source(text).functions


def test_digit_separators_and_character_literals_hold_no_brackets() -> None:
    text = "int target() { int n = 1'000'000; char c = '{'; char q = '\\''; return u8'('; }"
    found = function(text)
    assert found.body.end == len(text)


def test_arguments_are_split_outside_brackets_and_template_arguments() -> None:
    text = (
        'DEFINE(Name, Impl,\n  FFI::Bind().Arg<Pair<A, B>>().Attr<int>("a,b"),  // x, y\n  {1, 2});'
    )
    assert arguments(text, "DEFINE") == [
        "Name",
        "Impl",
        'FFI::Bind().Arg<Pair<A, B>>().Attr<int>("a,b")',
        "{1, 2}",
    ]


def test_a_comparison_is_not_taken_for_template_arguments() -> None:
    assert arguments("f(a < b, c);", "f") == ["a < b", "c"]


def test_an_invocation_knows_its_explicit_template_arguments() -> None:
    (found,) = Source("x = call<int, Map<A, B>>(1);").invocations("call")
    assert found.template == "<int, Map<A, B>>"


def test_a_longer_name_is_another_name() -> None:
    assert Source("my_call(1); call2(1); call(1);").words("call") == [22]


def test_the_innermost_call_around_an_offset() -> None:
    text = "dict(arg(1) = wrap(Handler), 2);"
    source = Source(text)
    inner = source.enclosing(text.index("Handler"))
    assert inner is not None
    assert inner.name == "wrap"
    outer = source.enclosing(inner.span.start)
    assert outer is not None
    assert [source.slice(one) for one in outer.arguments] == ["arg(1) = wrap(Handler)", "2"]


def test_the_outermost_declaration_around_an_offset() -> None:
    text = "#include <a>\n\nnamespace a {\nnamespace b {\nint target() { f(); }\n}\n}\n"
    assert text[Source(text).top_level_start(text.index("f()")) :].startswith("namespace a")


DECOYS = st.sampled_from(
    [
        "// int target() { ' \" (\n",
        "// continued \\\n int target() {\n",
        "/* int target() { ' \" ( */ ",
        "/* // */ ",
        'auto s = "int target() { \\" // /* ";\n',
        'auto r = R"(int target() { " */ ))";\n',
        'auto r = u8R"x(int target() { )" )y" )x";\n',
        "char c = '{'; char d = '\\''; char e = '\"';\n",
        "int n = 0x1'f'ff; double d = 1'0.5e+3;\n",
        "#define OPEN {{{ int target() { \\\n   ((( \n",
        "#error don't count this (\n",
        "#if 0\nint target() { ((( don't\n#endif\n",
        "#ifdef A\nint a[] = {1,\n#else\nint a[] = {2,\n#endif\n 3};\n",
        "struct S { int x{f(1)}; };\n",
        "int target2(int a) { return a; }\n",
        "int target();\n",
        "auto lambda = [](int a) { return a; };\n",
        "namespace n { int mytarget() { target(); return 1; } }\n",
        "\n",
        "\t ",
    ]
)


@settings(deadline=None)
@given(st.lists(DECOYS), st.lists(DECOYS), st.lists(DECOYS))
def test_no_comment_string_or_bracket_hides_or_fakes_a_function(
    before: list[str], inside: list[str], after: list[str]
) -> None:
    body = "{\n" + "".join(inside) + "\n}"
    text = "".join(before) + "\nint target(int a) " + body + "\n" + "".join(after)
    found = function(text)
    assert text[found.body.start : found.body.end] == body


@settings(deadline=None)
@given(st.text(alphabet="ab \n\\\"'/*#(){}[]<>;:,=R1if0els"))
def test_any_text_is_scanned_line_for_line(text: str) -> None:
    source = Source(text)
    assert len(source.code) == len(text)
    assert [i for i, c in enumerate(source.code) if c == "\n"] == [
        i for i, c in enumerate(text) if c == "\n"
    ]
    for one in source.functions:
        assert text[one.body.start] == "{"
        assert text[one.body.end - 1] == "}"


@settings(deadline=None)
@given(st.text(), st.lists(st.tuples(st.integers(0, 200), st.text())))
def test_insertion_keeps_every_other_character(text: str, some: list[tuple[int, str]]) -> None:
    insertions = [Insertion(min(at, len(text)), new) for at, new in some]
    edited = insert(text, insertions)
    kept = edited
    for at in sorted({one.at for one in insertions}, reverse=True):
        before = sum(len(one.text) for one in insertions if one.at < at)
        here = "".join(one.text for one in insertions if one.at == at)
        assert kept[at + before :].startswith(here)
        kept = kept[: at + before] + kept[at + before + len(here) :]
    assert kept == text


def test_a_span_is_cut_out_of_the_text() -> None:
    assert Source("abc").slice(Span(1, 2)) == "b"
