// `npm run pack`: the packages that are published, as tarballs in dist/packages, with the sizes of each. Publishes
// nothing.
//
//   npm run pack                   all that can be made here, built first
//   npm run pack -- client shoal   only these: client, shoal, onnxruntime, native, cuda
//
// Native packages hold what a glibc of this machine and later ones run: publish those that CI made on the oldest system.
// `cuda` wants nvcc (npm run fetch-nvcc) and takes a quarter of an hour of CPU the first time.

import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { filesBelow } from './pack/packed-tree.ts';
import { packClient, packCuda, packNative, packRuntimes, packShoal, type PackedPackage } from './pack/packages.ts';

const PROJECT = join(import.meta.dirname, '..');
const OUT = join(PROJECT, 'dist/packages');
const BUILD = join(OUT, 'build');
/** For build.sh and, behind it, nvcc. */
const CXX = join(PROJECT, 'tools/pack/c++.sh');
const COMPILER = { CXX, NVCC_CCBIN: CXX };
const PARTS = ['client', 'shoal', 'onnxruntime', 'native', 'cuda'] as const;
type Part = (typeof PARTS)[number];

const wanted = process.argv.slice(2);
const unknown = wanted.find((word) => !PARTS.includes(word as Part));
if (unknown !== undefined) {
  console.error(`pack: there is no package "${unknown}"; there are ${PARTS.join(', ')}`);
  process.exit(2);
}
let isWhole = true;
// What is packed is what the sources say.
execFileSync(process.execPath, [join(PROJECT, 'node_modules/typescript/bin/tsc'), '-b'], {
  cwd: PROJECT,
  stdio: ['ignore', 'inherit', 'inherit'],
});
mkdirSync(OUT, { recursive: true });
for (const part of PARTS)
  if (wanted.length === 0 || wanted.includes(part))
    for (const packed of await made(part)) report(packed, tarball(packed));
process.exit(isWhole ? 0 : 1);

async function made(part: Part): Promise<readonly PackedPackage[]> {
  const options = { project: PROJECT, out: join(OUT, 'folders') };
  if (part === 'client') return [packClient(options)];
  if (part === 'shoal') return [packShoal(options)];
  if (part === 'onnxruntime') return packRuntimes(options);
  const step = part === 'native' ? 'addon' : 'cuda';
  if (!build('similarity', step) || !build('encoder', step)) return [];
  return part === 'native'
    ? [packNative(options, fromBuild(['similarity/similarity.node', 'encoder/encoder.node']))]
    : [packCuda(options, fromBuild(['similarity/similarity_cuda.so', 'encoder/libshoal_encoder.so']))];
}

function fromBuild(names: readonly string[]): Readonly<Record<string, string>> {
  return Object.fromEntries(names.map((name) => [name, join(BUILD, name)]));
}

/** In a folder of its own: what a checkout builds for itself stays as it is. False where a compiler is missing. */
function build(part: 'similarity' | 'encoder', step: 'addon' | 'cuda'): boolean {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    console.error(`pack: native packages are made on linux-x64, and this is ${process.platform}-${process.arch}`);
    return (isWhole = false);
  }
  const out = join(BUILD, part);
  mkdirSync(out, { recursive: true });
  const { status } = spawnSync('sh', [join(PROJECT, 'native', part, 'build.sh'), step], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { ...process.env, ...COMPILER, ARCH: '', SHOAL_NATIVE_OUT: out, SHOAL_ENCODER_OUT: out },
  });
  if (status !== 0) console.error(`pack: ${part} could not be built; there is no package of ${step} without it`);
  return status === 0 || (isWhole = false);
}

/** Bytes of the tarball, whose name says its version. */
function tarball({ folder }: PackedPackage): number {
  const [{ filename }] = JSON.parse(
    execFileSync('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', OUT, folder], {
      cwd: OUT,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'inherit'],
      maxBuffer: 64e6,
    }),
  ) as [{ readonly filename: string }];
  return statSync(join(OUT, filename)).size;
}

function report({ name, version, folder }: PackedPackage, bytes: number): void {
  const files = filesBelow(folder);
  const unpacked = files.reduce((sum, path) => sum + statSync(join(folder, path)).size, 0);
  const { dependencies = {} } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
    readonly dependencies?: Readonly<Record<string, string>>;
  };
  console.log(
    `${name}@${version}: ${megabytes(bytes)} packed, ${megabytes(unpacked)} unpacked, ${files.length} files, ` +
      `${Object.keys(dependencies).length} dependencies`,
  );
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(2)} MB`;
}
