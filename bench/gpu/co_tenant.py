"""Holds most of the card's memory as another tenant would, and runs a part of the bench beside it.
usage: co_tenant.py [--device gpu:0] [--small] --leave-mebibytes 2600 -- end-to-end.ts ARGUMENTS…
"""
import argparse, json, os, subprocess, sys

split = sys.argv.index('--')
part = sys.argv[split + 1:]
parser = argparse.ArgumentParser()
parser.add_argument('--leave-mebibytes', type=int, default=2600); parser.add_argument('--device', default='gpu:0'); parser.add_argument('--scratch', default='/tmp'); parser.add_argument('--small', action='store_true')
args = parser.parse_args(sys.argv[1:split])
held = None
if args.device != 'cpu':
    import torch
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - args.leave_mebibytes * 2 ** 20), dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    print(json.dumps({'part': 'co-tenant', 'heldMebibytes': held.numel() >> 20, 'leftMebibytes': torch.cuda.mem_get_info()[0] >> 20, 'totalMebibytes': total >> 20}), flush=True)
here = os.path.dirname(os.path.abspath(__file__))
common = ['--device', args.device, '--scratch', args.scratch] + (['--small'] if args.small else [])
sys.exit(subprocess.call(['node', '--conditions=@shoal/source', '--disable-warning=ExperimentalWarning', os.path.join(here, part[0]), *common, *part[1:]]))
