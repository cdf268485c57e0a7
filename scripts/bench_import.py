"""Time and memory of `pb.import_logs` on 10 million rows: CSV, Parquet, and Parquet in random order."""

import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

N, T = 10_000_000, 20
if len(sys.argv) == 1:
    rng, k = np.random.default_rng(0), np.arange(N)
    columns = {"id": k // T, "t": k % T, "act": rng.integers(0, 3, N), "end": k % T == T - 1}
    table = pa.table(columns | {name: rng.normal(size=N) for name in ("a", "b", "c", "r")})
    with tempfile.TemporaryDirectory() as folder:
        csv.write_csv(table, f"{folder}/sorted.csv")
        parquet.write_table(table, f"{folder}/sorted.parquet")
        parquet.write_table(table.take(rng.permutation(N)), f"{folder}/mixed.parquet")
        for file in ("sorted.csv", "sorted.parquet", "mixed.parquet"):  # each in a new process
            subprocess.run([sys.executable, __file__, folder, file], check=True)
else:
    import privrl_bench as pb

    names = {"user": "id", "order": "t", "obs": "a,b,c", "act": "act", "reward": "r", "done": "end"}
    said = {"users": "simulated", "steps": T, "last_observation": "repeat"}
    start = time.perf_counter()
    pb.import_logs(
        "/".join(sys.argv[1:]), name=f"bench/{sys.argv[2].replace('.', '-')}-v0", **names, **said
    )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{sys.argv[2]}  {time.perf_counter() - start:.1f} s  {most:.2f} GB", flush=True)
