// The other tree of a comparison: a worktree of its own in the temporary folder, with packages and native code, so
// that a bench runs in it as in this one. Nothing of it is left behind by `close`.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';

type Say = (line: string) => void;

export interface OtherTree {
  readonly path: string;
  close(): void;
}

/** Checks out the ref of the repository at `root`, whose packages are shared where both trees want the same ones. */
export function openOtherTree(root: string, ref: string): OtherTree {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-compare-'));
  const path = join(folder, 'tree');
  const close = (): void => {
    spawnSync('git', ['-C', root, 'worktree', 'remove', '--force', path], { stdio: 'ignore' });
    rmSync(folder, { recursive: true, force: true });
  };
  const { status, stderr } = spawnSync(
    'git',
    ['-C', root, 'worktree', 'add', '--detach', '--quiet', path, `${ref}^{commit}`],
    { encoding: 'utf8' },
  );
  if (status === 0) return { path, close };
  close();
  throw new Error(`${ref} cannot be checked out: ${stderr.trim()}`);
}

function isGpu(path: string): boolean {
  return path.startsWith('gpu/');
}

/** The bench's path inside a tree: the path itself, or the one file of that name on the same side of bench/gpu. */
export function findBench(tree: string, bench: string): string {
  const folder = join(tree, 'bench');
  const wanted = bench.replace(/^bench\//, '').replace(/(\.ts)?$/, '.ts');
  if (existsSync(join(folder, wanted))) return join('bench', wanted);
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((path) => path.replaceAll('\\', '/'));
  const found = files.filter((path) => basename(path) === basename(wanted) && isGpu(path) === isGpu(wanted));
  if (found.length === 1) return join('bench', found[0]!);
  if (found.length === 0) throw new Error(`there is no ${basename(wanted)} in ${folder}`);
  throw new Error(
    `${basename(wanted)} is any of ${found.toSorted().join(', ')} in ${folder}: give its path inside bench/`,
  );
}

interface Lock {
  readonly packages?: Readonly<Record<string, LockedPackage>>;
}

interface LockedPackage {
  readonly version?: string;
  readonly integrity?: string;
  /** True for a workspace of the tree itself, whose folder is `resolved` then. */
  readonly link?: boolean;
  readonly resolved?: string;
}

/** Links this tree's packages where they are all that the other tree wants, else installs them. */
export function preparePackages(other: string, root: string, say: Say): void {
  const [theirs, ours] = [lockOf(other), lockOf(root)];
  if (theirs === undefined) return;
  if (ours !== undefined && existsSync(join(root, 'node_modules')) && hasAllOf(ours, theirs)) {
    linkPackages(other, root, theirs);
    return;
  }
  say('installing the packages of the other tree (npm ci) …');
  const { status, stderr } = spawnSync('npm', ['ci', '--include=dev', '--no-audit', '--no-fund', '--loglevel=error'], {
    cwd: other,
    encoding: 'utf8',
    env: { ...process.env, ONNXRUNTIME_NODE_INSTALL: 'skip', USEARCH: 'prebuilt' },
  });
  if (status !== 0) throw new Error(`npm ci failed in the other tree: ${stderr.slice(-2_000)}`);
}

function lockOf(tree: string): Lock | undefined {
  const path = join(tree, 'package-lock.json');
  return existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as Lock) : undefined;
}

/** Whether one lock has whatever another wants from a registry, at the same places and with the same checksums. */
function hasAllOf({ packages: ours = {} }: Lock, { packages: theirs = {} }: Lock): boolean {
  const foreign = Object.entries(theirs).filter(([path, { link }]) => path.includes('node_modules/') && link !== true);
  return foreign.every(
    ([path, { version, integrity }]) =>
      path.startsWith('node_modules/') && ours[path]?.version === version && ours[path]?.integrity === integrity,
  );
}

function linkPackages(other: string, root: string, { packages = {} }: Lock): void {
  const workspaces = Object.entries(packages).filter(([, one]) => one.link === true);
  const scopes = new Set(workspaces.map(([path]) => path.split('/')[1]!).filter((name) => name.startsWith('@')));
  for (const name of readdirSync(join(root, 'node_modules'))) {
    if (!scopes.has(name)) linkTo(join(root, 'node_modules', name), join(other, 'node_modules', name));
  }
  for (const [path, { resolved }] of workspaces) linkTo(join(other, resolved!), join(other, path));
}

function linkTo(target: string, path: string): void {
  mkdirSync(dirname(path), { recursive: true });
  if (!existsSync(path)) symlinkSync(target, path);
}

/** Builds native code as the launcher of the tree would, where it has one; what is current is left alone. */
export function prepareNative(tree: string, say: Say): void {
  if (!existsSync(join(tree, 'tools/setup.sh')) || !existsSync(join(tree, 'native'))) return;
  const script = 'root=$PWD; . "$root/tools/setup.sh"; set_up_native $native_parts';
  const { status, stderr } = spawnSync('sh', ['-c', script], { cwd: tree, encoding: 'utf8' });
  if (stderr.trim() !== '') say(stderr.trim());
  if (status !== 0) throw new Error(`native code could not be built in ${tree}: ${stderr.slice(-2_000)}`);
}
