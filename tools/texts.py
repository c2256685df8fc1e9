"""What tools/lint knows about texts that users read: errors, remedies, help, docstrings. Each check takes the text of a
file, and lists (line, what is wrong). tests/repository/test_texts.py plants a mistake for each.

C++ is read by its tokens, not compiled: a remedy that is made elsewhere and passed in a variable is not seen here.
"""

import ast
import re
import shutil
import sys
from pathlib import Path

# Phrases that make a reader stop. In string literals and docstrings; comments are the author's own.
RETIRED = [
    (r"(?<!there )(?<!There )\bis no (?!longer|more)", '"is not a …", or what it is instead'),
    (r"\b[Nn]obody\b", "name the rank, process or caller"),
    (r"\b[Ss]omebody\b", "name the rank, process or caller"),
    (r"\b(what|that|which) is there\b", "name the thing: the value, the memory, the file"),
    (r"\bsigns? of life\b", "heartbeat"),
    (r"\bhand(s|ed)? (it |them |the value )?in\b", "supply, pass, give"),
    (r"\b(can|could|cannot|could not) be had\b", "allocate, get, supply"),
    (r"\b(does|do) not go (with|together)\b", "cannot be combined with"),
    (r"\bshall\b", "must, or the present tense"),
    (r"\b[Aa] word about\b", "fingerprint, summary"),
    (r"\bis told\b|\bare told\b", "reports, receives"),
]
MARKDOWN_WIDTH = 120
# Names that codespell takes for misspelt words.
SPELLED_SO = "filetest,kinf,kno,kown"

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R"(?P<tag>\w*)\(.*?\)(?P=tag)")|(?P<string>"(?:[^"\\\n]|\\.)*")"""
    r"""|(?P<char>(?<!\w)'(?:[^'\\\n]|\\.)+')|(?P<include>\#include[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])"""
    r"""|(?P<word>\w+(?:::\w+)*)|(?P<other>[^\s])""",
    re.DOTALL,
)


def _tokens(text):
    """(kind, token, line) of a C++ file, comments and includes left out, adjacent literals joined."""
    found = []
    line, seen = 1, 0
    for match in _TOKEN.finditer(text):
        line, seen = line + text.count("\n", seen, match.start()), match.start()
        kind = match.lastgroup if match.lastgroup != "tag" else "raw"
        if kind in ("comment", "include"):
            continue
        if kind == "string" and found and found[-1][0] == "string":
            found[-1] = ("string", found[-1][1][:-1] + match.group()[1:], found[-1][2])
        else:
            found.append((kind, match.group(), line))
    return found


def _argument(tokens, begin):
    """The tokens of the parenthesis that opens at `begin`, without it."""
    depth = 0
    for i in range(begin, len(tokens)):
        depth += {"open": 1, "close": -1}.get(tokens[i][0], 0)
        if depth == 0:
            return tokens[begin + 1 : i]
    return tokens[begin + 1 :]


def _alternatives(tokens):
    """The literals that an expression may begin and end with: of `a ? "x" : fmt::format("y", z)` x and y. One that is
    added to something is a beginning or an end only."""
    depth, parts = 0, [[]]
    for kind, token, line in tokens:
        if depth == 0 and token in ("?", ":"):
            parts.append([])
            continue
        depth += {"open": 1, "close": -1}.get(kind, 0)
        parts[-1].append((kind, token, line))
    for part in parts:
        if len(part) > 2 and part[0][1] in ("fmt::format", "std::string") and part[1][1] == "(":
            inner = _argument(part, 1)
            if len(inner) + 3 != len(part):
                continue  # something is added to it
            part = inner[:1]
        if len(part) == 1 and part[0][0] == "string":
            yield part[0][1][1:-1], part[0][2]


def _is_sentence(text):
    return bool(re.match(r"[A-Z{]", text)) and text.rstrip("\\n").endswith(".")


def cpp_remedies(text):
    """Remedies begin with a capital letter and end with a full stop."""
    tokens = _tokens(text)
    for i, (kind, token, _) in enumerate(tokens[:-2]):
        if kind == "word" and token == "try_this" and tokens[i + 1][1] == "(":
            argument = _argument(tokens, i + 1)
        elif kind == "word" and token in ("remedy", "kRemedy") and tokens[i + 1][1] == "=" and tokens[i + 2][1] != "=":
            end = next((j for j in range(i, len(tokens)) if tokens[j][1] == ";"), len(tokens))
            argument = tokens[i + 2 : end]
        else:
            continue
        for remedy, line in _alternatives(argument):
            if remedy and not _is_sentence(remedy):
                yield line, f'a remedy is a sentence, with a capital letter and a full stop: "{remedy}"'


def codes_with_usual_remedy(text):
    """Of src/base/problems/remedies.cc."""
    return set(re.findall(r"\{Code::(k\w+),", text))


def cpp_refusals(text, usual):
    """An error says what to do, unless its code has a usual remedy. A statement that makes one either calls try_this, or
    the function sets `remedy` in one of the next statements."""
    tokens = _tokens(text)
    for i, (_, token, line) in enumerate(tokens):
        if not re.fullmatch(r"(lading::)?Code::k\w+", token) or i < 2 or tokens[i - 1][1] not in ("(", "{"):
            continue
        made = tokens[i - 2][1].endswith("Error") or (tokens[i - 3][1].endswith("Error") and tokens[i - 2][0] == "word")
        if not made or token.rpartition("::")[2] in usual:
            continue
        statements, rest = 0, i
        while rest < len(tokens) and statements < 6 and tokens[rest][1] not in ("try_this", "remedy"):
            statements += tokens[rest][1] == ";"
            rest += 1
        first = next((j for j in range(i, len(tokens)) if tokens[j][1] == ";"), len(tokens))
        is_named = tokens[i - 2][0] == "word" and not tokens[i - 2][1].endswith("Error")
        is_kept = is_named or tokens[max(0, i - 4)][1] in ("Error", "error") or tokens[i - 3][1] == "="
        if rest >= len(tokens) or statements == 6 or (rest > first and not is_kept):
            yield line, f"an error of code {token.rpartition('::')[2]} has no remedy (try_this)"


def _python_text(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _python_text(node.left), _python_text(node.right)
        return (left or "{}") + (right or "{}") if left or right else None
    return None


def _python_alternatives(node):
    if isinstance(node, ast.IfExp):
        yield from _python_alternatives(node.body)
        yield from _python_alternatives(node.orelse)
    elif (text := _python_text(node)) is not None:
        yield text


def python_remedies(text):
    """As of C++: of `remedy=…` in calls, and of variables called remedy."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "remedy":
            value = node.value
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and re.fullmatch(r"_?(REMEDY|remedy)", t.id) for t in node.targets):
            value = node.value
        else:
            continue
        for remedy in _python_alternatives(value):
            if remedy and not (re.match(r"[A-Z{]", remedy) and remedy.endswith((".", "{}"))):
                yield value.lineno, f'a remedy is a sentence, with a capital letter and a full stop: "{remedy}"'


def python_refusals(text):
    """Every Problem has a remedy, but those that only pass on what they were given."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
            names = {keyword.arg for keyword in node.keywords}
            if "remedy" not in names and None not in names:
                yield node.lineno, "a Problem has no remedy="


def _phrases(text, line):
    for phrase, better in RETIRED:
        for found in re.finditer(phrase, text):
            yield line + text.count("\n", 0, found.start()), f'"{found.group().strip()}": better {better}'


def cpp_phrases(text):
    for kind, token, line in _tokens(text):
        if kind in ("string", "raw"):
            yield from _phrases(token, line)


def python_phrases(text):
    inner = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in node.values)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner:
            if (found := _python_text(node)) is not None:
                yield from _phrases(found, node.lineno)


def markdown_width(text):
    """Lines of at most 120 characters. Tables, links by themselves and code blocks are as long as they have to be."""
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        is_code ^= line.lstrip().startswith("```")
        if len(line) > MARKDOWN_WIDTH and not is_code and not line.lstrip().startswith("|") and " " in line[:MARKDOWN_WIDTH].strip():
            yield number, f"{len(line)} characters, more than {MARKDOWN_WIDTH}"


def spelling_command(root):
    """codespell of the developers' environment, with our words; None if it is not installed."""
    places = [root / ".venv" / "bin" / "codespell", Path(sys.executable).parent / "codespell", shutil.which("codespell")]
    found = next((str(place) for place in places if place and Path(place).exists()), None)
    return [found, "--ignore-words-list", SPELLED_SO] if found else None
