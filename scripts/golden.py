"""Record the golden runs, or compare today's code with what was recorded.

    python scripts/golden.py record [--only NAME ...]
    python scripts/golden.py compare [--exact] [--only NAME ...]

`compare` prints which fields differ, per case, and ends with 1 if any does. It is exact on the
machine where the runs were recorded and tolerant on others; --exact asks for the exact comparison
anywhere. Record again only where a change of behaviour is meant. The cases are in
tests/golden/cases.yaml.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # the package of this tree, not an installed one


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases, in this order")
    parser.add_argument("--exact", action="store_true", help="to the last bit, on any machine")
    parser.add_argument("--fields", type=int, default=12, help="differences shown of one case")
    options = parser.parse_args()
    import golden_runs as golden

    names = options.only or list(golden.cases())
    if unknown := sorted(set(names) - set(golden.cases())):
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(golden.cases())}")
    here, record = golden.fingerprint(), options.action == "record"
    known = golden.load() if golden.RUNS.exists() else {"machine": here, "cases": {}}
    if record and options.only and known["machine"] != here:
        parser.error("the other cases were recorded on another machine: record all of them")
    exact = options.exact or known["machine"] == here
    start, found, differing = time.perf_counter(), {}, 0
    with tempfile.TemporaryDirectory(prefix="golden_") as folder:
        made = golden.make(Path(folder))
        print(f"made the dataset and the models in {time.perf_counter() - start:.1f} s", flush=True)
        for name in names:
            begin = time.perf_counter()
            fields, verdict = [], "recorded"
            try:
                found[name] = golden.normal(golden.run(name, made))
            except RuntimeError as error:
                fields, verdict = str(error).splitlines(), "failed"
                differing += 1
            if not record and name in found:
                before = known["cases"].get(name)
                fields = ["not recorded"]
                if before is not None:
                    fields = golden.differences(before, found[name], exact=exact)
                verdict = f"{len(fields)} fields differ" if fields else "equal"
                differing += bool(fields)
            print(f"{name:24} {time.perf_counter() - begin:6.2f} s  {verdict}", flush=True)
            for field in fields[: options.fields]:
                print(f"    {field}")
            if len(fields) > options.fields:
                print(f"    and {len(fields) - options.fields} more")
    spent = time.perf_counter() - start
    if record:
        cases = {**known["cases"], **found}
        order = [name for name in golden.cases() if name in cases]
        golden.save({"machine": here, "cases": {name: cases[name] for name in order}})
        print(f"recorded {len(found)} of {len(names)} cases in {spent:.0f} s: {golden.RUNS.name}")
        return int(differing > 0)
    kind = "exact" if exact else "tolerant"
    print(f"compared {len(names)} cases in {spent:.0f} s ({kind}): {differing} differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
