# What PyTorch does of the work that cuda_bench times (native/similarity/test/cuda_bench.cu), on the same shapes: exact
# top-k by matrix product and topk, one query, gathered rows, and a sparse matrix times lanes of activation (cuSPARSE).
# Medians of device times; the answers of top-k are checked against fp64 first. Usage: python3
# bench/gpu/similarity_torch.py [topk] [rescore] [spread]
import sys
import torch

wanted = set(sys.argv[1:]) or {"topk", "rescore", "spread"}
device = torch.device("cuda")
generator = torch.Generator(device=device).manual_seed(1)


def median_us(work, runs=15, warm=3):
    for _ in range(warm):
        work()
    times = []
    for _ in range(runs):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) * 1e3)
    return sorted(times)[len(times) // 2]


def normal(*shape, dtype=torch.float16):
    return torch.randn(*shape, device=device, generator=generator, dtype=torch.float32).to(dtype)


def search(queries, rows, k):
    # All scores at once where they fit (2 GB of fp16), which is the fastest way; sorted, best first.
    return torch.topk(queries @ rows.T, k, dim=1, sorted=True)


print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
a, b = torch.empty(1 << 31, device=device, dtype=torch.uint8), torch.ones(1 << 31, device=device, dtype=torch.uint8)
bandwidth = 2 * (1 << 31) / median_us(lambda: a.copy_(b))  # bytes a microsecond
print(f"copy on the device {bandwidth / 1e6:.2f} TB/s")
del a, b

rows = torch.nn.functional.normalize(normal(1_000_000, 384, dtype=torch.float32)).half()
if "topk" in wanted:
    queries = torch.nn.functional.normalize(normal(1000, 384, dtype=torch.float32)).half()
    best = search(queries, rows, 10).indices[0].tolist()
    exact = torch.topk(rows.double() @ queries[0].double(), 10).indices.tolist()
    print(f"fp16 scores find {len(set(best) & set(exact))} of the true 10 of query 0")
    for count, k in ((1000, 10), (1000, 5000), (1, 10), (8, 10)):
        some = queries[:count]
        product, whole = median_us(lambda: some @ rows.T), median_us(lambda: search(some, rows, k))
        print(f"torch topk {count} x 1M x 384 f16, k {k}: {whole:.1f} us (product alone {product:.1f})")
    wide = rows.float()
    torch.backends.cuda.matmul.allow_tf32 = True
    print(
        f"torch topk 1000 x 1M x 384 tf32, k 10: {median_us(lambda: search(queries.float(), wide, 10), runs=5):.1f} us"
    )
    del wide
if "rescore" in wanted:
    for count in (1, 1000):
        queries = normal(count, 384)
        candidates = [
            torch.randint(0, 1_000_000, (count, 100_000 // count), device=device, generator=generator) for _ in range(8)
        ]
        turn = iter(range(1_000_000))

        def gathered():
            chosen = rows[candidates[next(turn) % 8]]
            return torch.einsum("qd,qcd->qc", queries, chosen)

        print(f"torch rescore {count} x {100_000 // count}: {median_us(gathered):.1f} us")
if "spread" in wanted:
    for nodes, lanes in ((10_000, 1), (10_000, 16), (1_000_000, 1), (1_000_000, 16)):
        counts = torch.randint(0, 41, (nodes,), device=device, generator=generator)
        begin = torch.zeros(nodes + 1, device=device, dtype=torch.int32)
        begin[1:] = torch.cumsum(counts, 0)
        edges = int(begin[-1])
        target = torch.repeat_interleave(torch.arange(nodes, device=device), counts)
        source = torch.randint(0, nodes, (edges,), device=device, generator=generator)
        source = source[torch.argsort(target * nodes + source)].to(torch.int32)  # sorted within a node
        weight = torch.rand(edges, device=device, generator=generator) * 0.1
        matrix = torch.sparse_csr_tensor(begin, source, weight, size=(nodes, nodes))
        seeds = torch.rand(nodes, lanes, device=device, generator=generator)

        def spread(steps=3, decay=0.8, threshold=1e-6):
            total, given = seeds.clone(), seeds
            for _ in range(steps):
                given = matrix @ torch.where(given >= threshold, given * decay, 0.0)
                total += given
            return total

        print(
            f"torch spread {nodes} nodes {edges} edges {lanes} lanes 3 steps: {median_us(spread):.1f} us "
            f"(one product {median_us(lambda: matrix @ seeds):.1f})"
        )
