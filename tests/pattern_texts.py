"""Patterns that are accepted, and patterns whose automata are too large."""

from __future__ import annotations

SIGNS = [chr(0x4E00 + 140 * number) for number in range(32)]
"""Signs of three bytes that share few of them."""

ACCEPTED: tuple[tuple[str, int], ...] = (
    (r"^([a-z0-9]+)/", 1), (r"/([^/]+)$", 0), (r"^https?://([^/]+)/", 1), (r"utm_source=([^&]*)", 1),
    (r"^[^@]+@([^@]+)$", 1), (r"[a-z0-9._]+@[a-z0-9]+\.[a-z]{2,6}", 0), (r"^(\d{4})-(\d\d)-(\d\d)", 2),
    (r"\d+", 0), (r"(\d+)(?:\.\d+)?", 1), (r"^[A-Z]{2}\d{6,8}$", 0), (r"(?i)error|warn|fatal", 0),
    (r"(foo|bar|baz)+", 0), (r"^(GET|POST) ([^ ]+)", 2), (r" (\d{3}) ", 1), (r"^\s*$", 0), (r"[^ -~]", 0),
    (r"^([a-z]+)[ _-](\w+)", 2), (r"(a|b)*c", 1), (r"([ab]|ac)*d", 0), (r"(a*)*b", 0), (r"(a|aa)*b", 0),
    (r"(x+x+)+y", 0), (r".*foo.*bar", 0), (r"a.{7}b", 0), (r"(a|b)*a(a|b){8}c", 0), (r"[01]*1[01]{7}x", 0),
    (r"(\d{1,3}\.){3}\d{1,3}", 0), (r"^([^-]*)-(.*)$", 1), (r"#[0-9a-fA-F]{6}", 0), (r"(?i)^mr?s?\.? ([a-z]+)", 0),
    (r"^(.*)-(.*)$", 0), (r"\[([^\]]*)\]", 1), (r"é+(à|ü)", 0), (r"(?i)straße|[äöü]{3}", 0), (r"^([А-Яа-я]+) ", 1),
    (r"^[一-龥]{2,4}$", 0), (r"a.{6}#", 0), (f"^([{''.join(SIGNS)}]*)-", 1), (f"[{''.join(SIGNS[:5])}]{{60}}#", 0),
    (r"^.{90}$", 0), (r"[\w.+-]+@[\w-]+\.[\w.]+", 0), (r"^(\S+) (\S+) (\S+)", 3),
)  # fmt: skip
"""Patterns, and the group that is extracted."""

EXPONENTIAL: tuple[str, ...] = (
    r"[ab]*a[ab]{20}c", r"a[ab]{20}", r"(a|b)*a(a|b){12}", r"a.{12}b", r".*a.{10}$", r"(.*a.{9}){2}",
    r"[01]*1[01]{14}", r"(x|y)*x(x|y){11}z", r"\w*\d\w{12}-", r"[^ ]*a[^ ]{10} ", r"(?i)a[a-z]{15}b", r"1\d{12}0",
    r"[ab]{20}a[ab]*c[ab]*", r"(a|ab|abc)*a(a|b|c){12}", r"a[^b]{15}c", r"(aa|ab|b)*a[ab]{12}c", r"c[ab]{0,2}.{12}d",
    r"(?:[ab]c?)*a(?:[ab]c?){10}d", r"\s.{11}\s", r"(a[ab]{10}|b[ab]{11})c", r"x.{0,12}y.{0,12}z", r"a.{8}#",
    r"[aeiou][^0-9]{8}[0-9]", f"[{''.join(SIGNS)}].{{8}}#", r"[^b]{0,8}a.{8}#", f"[^#]*a[^#]{{8}}[{''.join(SIGNS)}]#",
)  # fmt: skip
"""Patterns of which one direction needs more states than are allowed."""

UNKNOWN: tuple[str, ...] = (
    "(", ")", "a**", "[a", "[z-a]", r"\bfoo\b", r"(a)\1", "(?=a)", "(?P<n>a)", "(?<n>a)", "a{3", "a{2,1}", "a{999}",
    r"\p{L}", r"\x41", "*a", "^*", "\\", r"(?i:a)", r"\Aa\z",
)  # fmt: skip
"""Patterns outside the part that is known."""
