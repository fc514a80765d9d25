"""The other side of bench/peers/files.ts: Daft reads a Parquet file, a batch function of it has sentence-transformers
encode the texts, and Daft writes Parquet with all columns and the vectors.

Reads a line {"model": folder, "threads": n, "maxTokens": n, "input": glob, "rows": n}, answers {"versions": ...}; then for
each line, the folder to write, answers {"seconds": s}: from the file to the last byte of the output. The model is loaded
before, once.
"""

import json
import os
import sys

sys.path.pop(0)  # this folder, where a file has the name of a package
request = json.loads(sys.stdin.readline())
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(request["threads"])
os.environ["TOKENIZERS_PARALLELISM"] = "true" if request["threads"] > 1 else "false"
os.environ["RAYON_NUM_THREADS"] = str(request["threads"])
os.environ["DAFT_ANALYTICS_ENABLED"] = "0"
os.environ["DAFT_PROGRESS_BAR"] = "0"

say = sys.stdout
sys.stdout = sys.stderr  # what libraries print is not an answer

import time  # noqa: E402

import daft  # noqa: E402
import sentence_transformers  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(request["threads"])


def answer(facts):
    say.write(json.dumps(facts) + "\n")
    say.flush()


model = sentence_transformers.SentenceTransformer(
    request["model"], device="cpu", model_kwargs={"dtype": torch.float32}
)
model.max_seq_length = request["maxTokens"]
dims = model.get_embedding_dimension()
vector = daft.DataType.fixed_size_list(daft.DataType.float32(), dims)


# encode() sorts what it gets by length, so it is given all rows of the file at once: the best for it
@daft.func.batch(return_dtype=vector, batch_size=request["rows"], use_process=False)
def embed(texts):
    found = model.encode(
        texts.to_pylist(), show_progress_bar=False, normalize_embeddings=True, convert_to_numpy=True
    )
    return daft.Series.from_numpy(found).cast(vector)


daft.set_runner_native()
answer(
    {
        "versions": {
            "daft": daft.__version__,
            "sentence-transformers": sentence_transformers.__version__,
            "torch": torch.__version__,
        }
    }
)
for line in sys.stdin:
    start = time.perf_counter()
    daft.read_parquet(request["input"]).with_column("embedding", embed(daft.col("text"))).write_parquet(line.strip())
    answer({"seconds": time.perf_counter() - start})
