"""Holds most of the card's memory as another tenant would, and runs a part of the bench beside it. --blind: what that
part starts finds an nvidia-smi that answers nonsense, so that nothing but running out of memory tells it how little
there is.
usage: co_tenant.py [--device gpu:0] [--small] [--blind] --leave-mebibytes 2600 -- end-to-end.ts ARGUMENTS…
"""

import argparse, json, os, subprocess, sys, tempfile

split = sys.argv.index('--')
part = sys.argv[split + 1 :]
parser = argparse.ArgumentParser()
parser.add_argument('--leave-mebibytes', type=int, default=2600)
parser.add_argument('--device', default='gpu:0')
parser.add_argument('--scratch', default='/tmp')
parser.add_argument('--small', action='store_true')
parser.add_argument('--blind', action='store_true')
args = parser.parse_args(sys.argv[1:split])
held = None
if args.device != 'cpu':
    import torch

    free, total = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - args.leave_mebibytes * 2**20), dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    print(
        json.dumps(
            {
                'part': 'co-tenant',
                'heldMebibytes': held.numel() >> 20,
                'leftMebibytes': torch.cuda.mem_get_info()[0] >> 20,
                'totalMebibytes': total >> 20,
            }
        ),
        flush=True,
    )
here = os.path.dirname(os.path.abspath(__file__))
common = ['--device', args.device, '--scratch', args.scratch] + (['--small'] if args.small else [])
environment = dict(os.environ)
if args.blind:
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, 'nvidia-smi'), 'w') as tool:
        tool.write('#!/bin/sh\necho the lights are on\n')
    os.chmod(tool.name, 0o755)
    environment['PATH'] = folder + os.pathsep + environment['PATH']
status = subprocess.call(
    [
        os.environ.get('NODE', 'node'),
        '--conditions=@shoal/source',
        '--disable-warning=ExperimentalWarning',
        os.path.join(here, part[0]),
        *common,
        *part[1:],
    ],
    env=environment,
)
if held is not None:
    print(json.dumps({'part': 'co-tenant', 'leftAfterMebibytes': torch.cuda.mem_get_info()[0] >> 20}), flush=True)
sys.exit(status)
