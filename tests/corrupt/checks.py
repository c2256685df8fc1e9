"""What every refusal and every acceptance must look like, whatever the case."""

import json
import unicodedata

MEBIBYTE = 1 << 20
MAX_PEAK_BYTES = 64 * MEBIBYTE
MAX_CPU_S = 1.0
# Of one line to a person. Paths are shown whole, everything else is cut.
MAX_LINE_CHARACTERS = 6000

REFUSED = 3


def assert_modest(finished):
    """No signal, no deadline, little time and memory."""
    assert finished.exit_code >= 0, f"ended by signal {-finished.exit_code}: {finished.err[:500]}"
    assert finished.cpu_s <= MAX_CPU_S
    assert finished.peak_bytes <= MAX_PEAK_BYTES, f"{finished.peak_bytes / MEBIBYTE:.0f} MiB"


def is_deceptive(character):
    """Obeyed, hidden or reordered by a terminal: controls, and formats such as U+202E."""
    category = unicodedata.category(character)
    return character != "\n" and category in ("Cc", "Cf", "Zl", "Zp", "Cs")


def assert_safe_for_terminals(output):
    text = output.decode("utf-8")
    bad = sorted({hex(ord(character)) for character in text if is_deceptive(character)})
    assert not bad, f"raw {bad} in {text[:300]!r}"


def assert_refused(run, problems, path):
    """`run` takes options and runs the command; `problems` is everything that must be told, no more."""
    with_json = run("--json")
    assert_modest(with_json)
    assert with_json.exit_code == REFUSED, with_json.err[:1000]
    answer = with_json.json
    assert answer["ok"] is False
    assert answer["schema"] == "lading.inspect/1"
    assert_told(problems, answer["problems"], path)
    assert_same_facts(answer["problems"], with_json.err, "refused: ")

    plain = run()
    assert_modest(plain)
    assert plain.exit_code == REFUSED
    assert plain.out == b"", "a refusal has no report"
    assert plain.err == with_json.err
    first = answer["problems"][0]
    topics = " ".join(filter(None, (first["code"], first.get("rule"))))
    last = plain.err.decode().splitlines()[-1]
    assert last == f"Run `lading help {topics}` to see what this means and what to do."


def assert_told(expected, found, path):
    """Each expected problem is among those found, and nothing else is."""
    left = list(found)
    for problem in expected:
        reasons = [why_not(problem, candidate, path) for candidate in left]
        assert None in reasons, f"{problem} is not told:\n" + "\n".join(filter(None, reasons)) + f"\n{found}"[:3000]
        left.pop(reasons.index(None))
    assert not left, f"not expected: {left}"[:3000]


def why_not(problem, found, path):
    """Nothing if `found` is the expected problem."""
    if found["code"] != problem.code:
        return f"code {found['code']}"
    # A break in the text may stand in a tensor's entry, and then names it.
    break_in_entry = problem.tensor is None and problem.code in ("json_syntax", "json_utf8", "json_depth")
    if found.get("tensor") != problem.tensor and not break_in_entry:
        return f"tensor {found.get('tensor')!r}"[:300]
    wanted_file = problem.file or str(path)
    if not found.get("file", "").endswith(wanted_file):
        return f"file {found.get('file')!r} does not end in {wanted_file!r}"
    if problem.placed and not is_range(found.get("bytes")):
        return f"bytes {found.get('bytes')}"
    if problem.at is not None and found["bytes"][0] != problem.at:
        return f"bytes {found['bytes']} do not begin at {problem.at}"
    facts = " ".join(found.get(key, "") for key in ("message", "expected", "found", "remedy", "rule"))
    missing = [text for text in problem.says if text not in facts]
    return f"{missing} not in {facts!r}"[:600] if missing else None


def is_range(value):
    return isinstance(value, list) and len(value) == 2 and 0 <= value[0] <= value[1]


def assert_same_facts(problems, err, label):
    """The text for people says what the JSON says, a line each."""
    assert_safe_for_terminals(err)
    lines = [line for line in err.decode().splitlines() if line.startswith(label)]
    assert len(lines) == len(problems), err[:1000]
    for line, problem in zip(lines, problems, strict=True):
        assert len(line) <= MAX_LINE_CHARACTERS, f"a line of {len(line)} characters"
        facts = [problem[key] for key in ("message", "expected", "found", "remedy", "rule", "code") if key in problem]
        facts += [str(problem["bytes"][0])] if "bytes" in problem else []
        facts += [f'"{problem["tensor"]}"'] if is_plain(problem.get("tensor")) else []
        facts += [problem["file"]] if is_plain(problem.get("file")) else []
        assert not [fact for fact in facts if fact not in line], line


def is_plain(name):
    """Shown as it is: nothing to escape and short enough."""
    return name is not None and len(name) <= 100 and name.isprintable() and not set(name) & set('"\\')


def assert_accepted(run, warnings, path):
    """Gives what the command says about every tensor."""
    with_json = run("--json", "--tensors")
    assert_modest(with_json)
    assert with_json.exit_code == 0, with_json.err[:1000]
    answer = with_json.json
    assert answer["ok"] is True and answer["problems"] == []
    assert_told(warnings, answer["warnings"], path)
    assert_same_facts(answer["warnings"], with_json.err, "note: ")
    for options in ((), ("--tensors",)):
        plain = run(*options)
        assert_modest(plain)
        assert plain.exit_code == 0
        assert plain.err == with_json.err
        assert_safe_for_terminals(plain.out)
        longest = max(plain.out.decode().splitlines(), key=len)
        assert len(longest) <= MAX_LINE_CHARACTERS, f"a line of {len(longest)} characters: {longest[:200]}"
    return answer


def tensors_in(file_bytes):
    """What the header says, read by another parser than ours: name to (dtype, shape, bytes in the file)."""
    header_bytes = int.from_bytes(file_bytes[:8], "little")
    header = json.loads(file_bytes[8 : 8 + header_bytes])
    metadata = header.pop("__metadata__", {})
    begin = 8 + header_bytes
    tensors = {
        name: (entry["dtype"], entry["shape"], [begin + offset for offset in entry["data_offsets"]])
        for name, entry in header.items()
    }
    return tensors, metadata
