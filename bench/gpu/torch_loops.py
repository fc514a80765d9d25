"""What PyTorch does with the same corpus and the same weights on the same card, beside Shoal in one run.

  encode    sentence-transformers' own `encode`, batch 32 and 256, fp32 as it comes and in fp16; it sorts by length
            itself and tokenizes, as its users have it
  padded    transformers' BertModel in fp16 with sdpa: rows sorted by length, cut by 64 k padded tokens (and by 32
            rows), ids ready
  packed    an encoder without padding in fp16 (torch.nn.attention.varlen), eager and compiled; ids ready, no tokenizer
  matmul    the card's dense fp16 rate, 8192 x 8192 x 8192 on random numbers

Vectors of every loop are compared with encode's in fp32 before its clock starts. Reads SCRATCH/corpus.json (corpus.ts).
usage: torch_loops.py [--device gpu:0] [--scratch DIR] [--small]
"""

import argparse, json, os, shutil, statistics, sys, tempfile, time

args = argparse.ArgumentParser()
args.add_argument('--device', default='gpu:0')
args.add_argument('--scratch', default='/tmp')
args.add_argument('--small', action='store_true')
args, _ = args.parse_known_args()
import torch
from safetensors.torch import load_file

on_cuda = torch.cuda.is_available() and args.device != 'cpu'
dev = 'cuda' if on_cuda else 'cpu'
half = torch.float16 if on_cuda else torch.float32
corpus = json.load(open(os.path.join(args.scratch, 'corpus.json')))
folder, texts, rows = corpus['folder'], corpus['texts'], corpus['rows']
config = json.load(open(os.path.join(folder, 'config.json')))
H, L, A, EPS = (
    config['hidden_size'],
    config['num_hidden_layers'],
    config['num_attention_heads'],
    config['layer_norm_eps'],
)
weights = {
    name.removeprefix('bert.'): value for name, value in load_file(os.path.join(folder, 'model.safetensors')).items()
}
tokens = sum(map(len, rows))
REPEATS = 1 if args.small else 3
F = torch.nn.functional
reference = None


def row(**facts):
    print(json.dumps({'part': 'torch', **facts}), flush=True)


def sync():
    if on_cuda:
        torch.cuda.synchronize()


def measure(label, work, repeats=REPEATS, **facts):
    """`work` gives the vectors of all texts, in their order; the first call warms up and is checked."""
    global reference
    vectors = work()
    sync()
    sample = F.normalize(vectors[:1024].float(), dim=1)
    if reference is None:
        reference = sample
    least = float((sample * reference).sum(1).min())
    assert least > 0.99, f'{label}: least cosine {least}'
    seconds = []
    for _ in range(repeats):
        sync()
        start = time.perf_counter()
        work()
        sync()
        seconds.append(time.perf_counter() - start)
    middle = statistics.median(seconds)
    row(
        loop=label,
        textsPerSecond=round(len(rows) / middle),
        raw=[round(len(rows) / s) for s in seconds],
        millionTokensPerSecond=round(tokens / middle / 1e6, 2),
        leastCosine=round(least, 6),
        **facts,
    )


def attempt(label, work):
    try:
        work()
    except Exception as error:  # one loop that this PyTorch cannot run must not take the others with it
        row(loop=label, failed=f'{type(error).__name__}: {error}'[:400])


# ---- sentence-transformers -----------------------------------------------------------------------------------------


def open_sentence_transformer():
    import sentence_transformers
    from sentence_transformers import SentenceTransformer

    home = tempfile.mkdtemp()
    for name in ('config.json', 'model.safetensors', 'tokenizer.json', 'sentence_bert_config.json'):
        shutil.copy(os.path.join(folder, name), home)
    shutil.copytree(os.path.join(folder, '1_Pooling'), os.path.join(home, '1_Pooling'))
    json.dump(
        [
            {'idx': 0, 'name': '0', 'path': '', 'type': 'sentence_transformers.models.Transformer'},
            {'idx': 1, 'name': '1', 'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'},
            {'idx': 2, 'name': '2', 'path': '2_Normalize', 'type': 'sentence_transformers.models.Normalize'},
        ],
        open(os.path.join(home, 'modules.json'), 'w'),
    )
    os.makedirs(os.path.join(home, '2_Normalize'), exist_ok=True)
    json.dump(
        {'tokenizer_class': 'BertTokenizerFast', 'do_lower_case': True, 'model_max_length': 512},
        open(os.path.join(home, 'tokenizer_config.json'), 'w'),
    )
    model = SentenceTransformer(home, device=dev)
    model.max_seq_length = 512
    return model, sentence_transformers.__version__


def encode_loops():
    model, version = open_sentence_transformer()

    def encode(batch):
        return torch.from_numpy(
            model.encode(texts, batch_size=batch, normalize_embeddings=True, show_progress_bar=False)
        )

    measure('encode, fp32, batch 32', lambda: encode(32), repeats=1, version=version)
    model.half() if on_cuda else None
    for batch in (32, 256):
        measure(
            f'encode, fp16, batch {batch}',
            lambda: encode(batch),
            repeats=1 if batch == 32 else REPEATS,
            version=version,
        )


# ---- padded --------------------------------------------------------------------------------------------------------


def padded_loops():
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**{k: v for k, v in config.items() if k != 'architectures'}), add_pooling_layer=False)
    model.load_state_dict(
        {k: v for k, v in weights.items() if not k.startswith('pooler') and 'position_ids' not in k}, strict=False
    )
    model = model.to(dev, half).eval()
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))

    def plan(budget, fixed):
        at = 0
        while at < len(order):
            width = -(-len(rows[order[at]]) // 8) * 8
            count = fixed or max(1, budget // width)
            yield order[at : at + count], width
            at += count

    def run(batches):
        out = torch.empty(len(rows), H)
        with torch.inference_mode():
            pending = []
            for indices, width, ids, lengths in batches:
                ids, lengths = ids.to(dev, non_blocking=True).long(), lengths.to(dev, non_blocking=True)
                mask = torch.arange(width, device=dev)[None] < lengths[:, None]
                states = model(ids, attention_mask=mask).last_hidden_state
                mean = (states * mask[..., None]).sum(1).float() / lengths[:, None]
                pending.append((indices, F.normalize(mean)))
            for indices, vectors in pending:
                out[indices] = vectors.cpu()
        return out

    for label, budget, fixed in (
        ('sorted, padded, 64 k tokens', 65536, 0),
        ('sorted, padded, 16 k tokens', 16384, 0),
        ('sorted, padded, 32 rows', 0, 32),
    ):
        batches = []
        for indices, width in plan(budget, fixed):
            ids = torch.zeros(len(indices), width, dtype=torch.int32)
            for r, i in enumerate(indices):
                ids[r, : len(rows[i])] = torch.tensor(rows[i], dtype=torch.int32)
            batches.append(
                (
                    torch.tensor(indices),
                    width,
                    ids.pin_memory() if on_cuda else ids,
                    torch.tensor([len(rows[i]) for i in indices]),
                )
            )
        measure(label, lambda: run(batches), runs=len(batches))


# ---- packed --------------------------------------------------------------------------------------------------------


def packed_loops():
    from torch.nn.attention.varlen import varlen_attn

    w = {name: value.to(dev, half) for name, value in weights.items() if value.is_floating_point()}
    layers = []
    for i in range(L):
        p = f'encoder.layer.{i}.'
        qkv = [p + f'attention.self.{n}' for n in ('query', 'key', 'value')]
        layers.append(
            dict(
                qkv=torch.cat([w[n + '.weight'] for n in qkv]),
                bqkv=torch.cat([w[n + '.bias'] for n in qkv]),
                o=w[p + 'attention.output.dense.weight'],
                bo=w[p + 'attention.output.dense.bias'],
                g1=w[p + 'attention.output.LayerNorm.weight'],
                c1=w[p + 'attention.output.LayerNorm.bias'],
                f1=w[p + 'intermediate.dense.weight'],
                b1=w[p + 'intermediate.dense.bias'],
                f2=w[p + 'output.dense.weight'],
                b2=w[p + 'output.dense.bias'],
                g2=w[p + 'output.LayerNorm.weight'],
                c2=w[p + 'output.LayerNorm.bias'],
            )
        )
    places = w['embeddings.position_embeddings.weight'] + w['embeddings.token_type_embeddings.weight'][0]

    def before(x, qkv, bias):
        parts = F.linear(x, qkv, bias).view(-1, 3, A, H // A)
        return parts[:, 0].contiguous(), parts[:, 1].contiguous(), parts[:, 2].contiguous()

    def after(a, x, o, bo, g1, c1, f1, b1, f2, b2, g2, c2):
        x = F.layer_norm(F.linear(a, o, bo) + x, (H,), g1, c1, EPS)
        return F.layer_norm(F.linear(F.gelu(F.linear(x, f1, b1)), f2, b2) + x, (H,), g2, c2, EPS)

    def encoder(before, after):
        def encode(ids, pos, starts, longest, owner, count):
            x = F.layer_norm(
                w['embeddings.word_embeddings.weight'][ids] + places[pos],
                (H,),
                w['embeddings.LayerNorm.weight'],
                w['embeddings.LayerNorm.bias'],
                EPS,
            )
            for l in layers:
                q, k, v = before(x, l['qkv'], l['bqkv'])
                a = varlen_attn(q, k, v, starts, starts, longest, longest).reshape(-1, H)
                x = after(a, x, l['o'], l['bo'], l['g1'], l['c1'], l['f1'], l['b1'], l['f2'], l['b2'], l['g2'], l['c2'])
            return F.normalize(torch.zeros(count, H, device=dev).index_add_(0, owner, x.float()))

        return encode

    batches, current, used = [], [], 0
    for index, ids in enumerate(rows):  # in the order they came: packing needs no sorting
        if used + len(ids) > 65536:
            batches.append(current)
            current, used = [], 0
        current.append(index)
        used += len(ids)
    batches.append(current)
    feeds = []
    for batch in batches:
        lengths = torch.tensor([len(rows[i]) for i in batch])
        ids = torch.tensor([t for i in batch for t in rows[i]], dtype=torch.int32)
        pos = torch.cat([torch.arange(n) for n in lengths])
        starts = F.pad(lengths.cumsum(0), (1, 0)).int()
        feeds.append(
            (
                batch,
                ids.pin_memory(),
                pos.pin_memory(),
                starts.to(dev),
                int(lengths.max()),
                torch.repeat_interleave(torch.arange(len(batch)), lengths).to(dev),
            )
        )

    def run(encode):
        out = torch.empty(len(rows), H)
        with torch.inference_mode():
            pending = [
                (
                    batch,
                    encode(
                        ids.to(dev, non_blocking=True).long(),
                        pos.to(dev, non_blocking=True),
                        starts,
                        longest,
                        owner,
                        len(batch),
                    ),
                )
                for batch, ids, pos, starts, longest, owner in feeds
            ]
            for batch, vectors in pending:
                out[torch.tensor(batch)] = vectors.cpu()
        return out

    measure('packed, eager', lambda: run(encoder(before, after)))
    for label, mode in (('packed, compiled', None), ('packed, compiled, max-autotune', 'max-autotune-no-cudagraphs')):
        started = time.perf_counter()
        compiled = encoder(
            torch.compile(before, dynamic=True, mode=mode), torch.compile(after, dynamic=True, mode=mode)
        )
        attempt(label, lambda: measure(label, lambda: run(compiled), compileSeconds=None))
        row(loop=label, secondsWithCompiling=round(time.perf_counter() - started))


def matmul():
    n = 8192 if on_cuda else 256
    a, b = torch.randn(n, n, device=dev, dtype=half), torch.randn(n, n, device=dev, dtype=half)
    for _ in range(3):
        a @ b
    sync()
    start = time.perf_counter()
    for _ in range(10):
        a @ b
    sync()
    row(loop='matmul', shape=f'{n}x{n}x{n}', teraflops=round(2 * n**3 * 10 / (time.perf_counter() - start) / 1e12))


row(
    loop='versions',
    torch=torch.__version__,
    cuda=torch.version.cuda,
    device=torch.cuda.get_device_name() if on_cuda else 'cpu',
)
attempt('encode', encode_loops)
attempt('matmul', matmul)
attempt('padded', padded_loops)
if on_cuda:
    attempt('packed', packed_loops)
sys.exit(0)
