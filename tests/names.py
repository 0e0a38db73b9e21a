"""Names of test cases that are the same in every process."""

import re


def named(case: object) -> str:
    """`case` as a string without the addresses of functions in it: workers must agree on what there is to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(case))
