"""Random JSON with every kind of value in every position, including invalid JSON."""

from __future__ import annotations

from hypothesis import strategies as st

TIMES = (
    "2024-01-02 2024-01-02T03 2024-01-02T03:04 2024-01-02T03:04:05Z 2024-01-02T03:04:05.1+02:00 0000-01-01 "
    "0001-01-01T00:00:00+01:00 9999-12-31T23:59:59.999999-01:00 2024-02-30 1969-12-31T23:59:59.5Z 2024-01-02T24:00 "
    "2024-01-02T03:04:05.1234567Z 2024-01-02T03:04:05+0200 2024-01-02T03:04:05-05 2024-01-02T03:04:60 20240102 "
    "2024-01-02T03:04:05+23:59 2024-01-02T03:04:05+24:00 2024-01-02T03:04:05z 2024-1-2 2024-01-02T 2024-01-02Z 2024"
)
NUMBERS = (
    "0 1 -1 127 128 1.0 1e2 9223372036854775807 9223372036854775808 -9223372036854775808 1700000000 1700000000000 "
    "99999999999 100000000000 -100000000000000000 1e400 1e39 -3.5e38 3.4e38 1e-400 -0 0.1 12.345 1234.56 12345.6 "
    "9999.99 9999.995 1E4 1e5 NaN Infinity -Infinity 007 1. 1e99999 1700000000.5 12345678901234567890123456789 .5 +1 "
    "99999999999999999999999999999999999999999 1_0 0x1 1e-2 1e-3 1.8e308 -123456789e305"
)
LEAVES = [
    *NUMBERS.split(),
    *(
        f'"{each}"'
        for each in (*TIMES.split(), *NUMBERS.split(), " 1", "1 ", "", "x", "é", "true", "}{", "\t", "\x7f")
    ),
    *(
        "null",
        "true",
        "false",
        "[]",
        "{}",
        "[null]",
        "[[]]",
        '"\\u0000"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\ud83d\\ude00"',
    ),
]
PLACES = [f'{{"{name}":%s}}' for name in "ildfstnypbaox"]
PLACES += ['{"a":[{"x":%s}]}', '{"a":[{"t":%s},null]}', '{"a":[%s]}', '{"o":{"q":%s}}', '{"o":{"q":"","z":[%s]}}']


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    field = st.tuples(st.sampled_from("ildfstnypbaoxqzw"), values)
    return st.lists(field, max_size=3).map(lambda found: "{" + ",".join(f'"{n}":{v}' for n, v in found) + "}")


LEAF = st.sampled_from(LEAVES)
JSON = st.recursive(
    LEAF, lambda inner: objects(inner) | st.lists(inner, max_size=2).map(lambda v: f"[{','.join(v)}]")
)
DOCUMENTS = objects(JSON) | objects(LEAF)
BYTES = st.one_of(
    DOCUMENTS.map(str.encode),
    st.binary(max_size=12).map(lambda found: b'{"s":"' + found + b'"}'),
    st.tuples(DOCUMENTS, st.integers(0, 60), st.binary(min_size=1, max_size=2)).map(
        lambda found: found[0].encode()[: found[1]] + found[2] + found[0].encode()[found[1] + 1 :]
    ),
)
