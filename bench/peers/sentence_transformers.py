"""The other side of bench/peers/peers.ts: sentence-transformers' own encode(), as people call it, on texts that come
as JSON; its encoder in PyTorch or, as its own ONNX backend does, in ONNX Runtime on an export of the same weights.

Reads a line {"model": folder, "threads": n, "maxTokens": n, "texts": [...], "onnx": file or null, "vectors": file},
answers {"versions": ...}, or {"failed": ...} where the model cannot be exported or opened; then for each line "run"
writes {"seconds": s}, and the vectors as f32 into the file named in the request.
"""

import json
import os
import sys

sys.path.pop(0)  # this folder: this file has the package's name
request = json.loads(sys.stdin.readline())
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(request["threads"])
os.environ["TOKENIZERS_PARALLELISM"] = "true" if request["threads"] > 1 else "false"
os.environ["RAYON_NUM_THREADS"] = str(request["threads"])

say = sys.stdout
sys.stdout = sys.stderr  # what libraries print is not an answer

import pathlib  # noqa: E402
import time  # noqa: E402

import sentence_transformers  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(request["threads"])


def answer(facts):
    say.write(json.dumps(facts) + "\n")
    say.flush()


class LastHiddenState(torch.nn.Module):
    """What is exported: token ids and mask to the last hidden states, as optimum's feature extraction has it."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def export(folder, path):
    """One ONNX file of rows and widths of any number; attention in plain operators."""
    encoder = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(5, 400, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=request["maxTokens"])}
    made = path.with_suffix(".part")
    torch.onnx.export(
        LastHiddenState(encoder),
        (ids, mask),
        made,
        input_names=["input_ids", "attention_mask"],
        output_names=["last_hidden_state"],
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        opset_version=18,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    made.rename(path)


def run_in_onnx_runtime(model, path):
    """Puts a session in the place of the model's encoder; tokenizer, batches and pooling stay encode()'s."""
    import onnxruntime

    if not path.exists():
        export(request["model"], path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def forward(input_ids, attention_mask, **_):
        inputs = {"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()}
        return {"last_hidden_state": torch.from_numpy(session.run(["last_hidden_state"], inputs)[0])}

    model[0].model.forward = forward
    return {"onnxruntime": onnxruntime.__version__}


try:
    # fp32 as the other sides compute: weights that are stored as fp16 would be run so, which CPUs do slowly
    model = sentence_transformers.SentenceTransformer(
        request["model"], device="cpu", model_kwargs={"dtype": torch.float32}
    )
    model.max_seq_length = request["maxTokens"]
    versions = {
        "sentence-transformers": sentence_transformers.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }
    if request["onnx"] is not None:
        versions |= run_in_onnx_runtime(model, pathlib.Path(request["onnx"]))
except Exception as error:
    answer({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
    sys.exit(0)
answer({"versions": versions})
for line in sys.stdin:
    if line.strip() != "run":
        break
    start = time.perf_counter()
    vectors = model.encode(request["texts"], show_progress_bar=False, normalize_embeddings=True, convert_to_numpy=True)
    seconds = time.perf_counter() - start
    vectors.astype("<f4").tofile(request["vectors"])
    answer({"seconds": seconds})
