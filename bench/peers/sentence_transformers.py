"""The other side of bench/peers/peers.ts: sentence-transformers' own encode(), as people call it, on texts that come
as JSON.

Reads a line {"model": folder, "threads": n, "maxTokens": n, "texts": [...]}, answers {"versions": ...}; then for
each line "run" writes {"seconds": s} and, after the first, the vectors as f32 into the file named in the request.
"""

import json
import os
import sys

sys.path.pop(0)  # this folder: this file has the package's name
request = json.loads(sys.stdin.readline())
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(request["threads"])
os.environ["TOKENIZERS_PARALLELISM"] = "true" if request["threads"] > 1 else "false"
os.environ["RAYON_NUM_THREADS"] = str(request["threads"])

import time  # noqa: E402

import sentence_transformers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(request["threads"])
model = sentence_transformers.SentenceTransformer(request["model"], device="cpu")
model.max_seq_length = request["maxTokens"]
say = sys.stdout
say.write(
    json.dumps(
        {
            "sentence-transformers": sentence_transformers.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        }
    )
    + "\n"
)
say.flush()
for line in sys.stdin:
    if line.strip() != "run":
        break
    start = time.perf_counter()
    vectors = model.encode(request["texts"], show_progress_bar=False, normalize_embeddings=True, convert_to_numpy=True)
    seconds = time.perf_counter() - start
    vectors.astype("<f4").tofile(request["vectors"])
    say.write(json.dumps({"seconds": seconds}) + "\n")
    say.flush()
