// The packages that are published, put together file by file below a folder: manifests, and what lies beside the code.
// Two are JavaScript and whole by themselves: `@shoal/client` and `shoal`. The others are for one platform each, and
// `shoal` does without them but for ONNX Runtime's.

import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { PackedTree, filesBelow } from './packed-tree.ts';

export interface PackedPackage {
  readonly name: string;
  readonly version: string;
  /** Holds what is in the tarball. */
  readonly folder: string;
}

export interface PackOptions {
  /** The root of the checkout, built. */
  readonly project: string;
  /** A folder a package is made below it. */
  readonly out: string;
}

type Json = Readonly<Record<string, unknown>>;

const APPS = ['cli', 'cpu-worker', 'gpu-worker', 'producer', 'dashboard'];
const ENGINES = { node: '>=22.12' };
const TEXTS = join(import.meta.dirname, 'texts');
/** ONNX Runtime's platforms that Shoal runs on: process.platform and process.arch. */
const RUNTIME_PLATFORMS = [
  ['linux', 'x64'],
  ['linux', 'arm64'],
  ['darwin', 'arm64'],
] as const;
/** Loaded when it is asked for (`--ann`); where its own build fails, everything else is there. */
const OPTIONAL = new Set(['usearch']);
/** Of the client: who names a bucket installs it, and everybody else is spared its 22 MB. Later versions do as well. */
const PEERS = new Set(['@aws-sdk/client-s3']);

/**
 * `@shoal/client/models`, for producers that tokenize by themselves: in the workspace libraries of their own, which are
 * not published.
 */
const MODELS = `export { openModel, openTokenizer } from '@shoal/models';
export { cacheFolder } from '@shoal/core';
`;

/** The producer's side: what libs/client reaches, with types, for every entry of its manifest. */
export function packClient({ project, out }: PackOptions): PackedPackage {
  const { version, exports } = readJson(join(project, 'libs/client/package.json')) as {
    readonly version: string;
    readonly exports: Readonly<Record<string, { readonly types: string; readonly default: string }>>;
  };
  const tree = new PackedTree(project);
  const entries = Object.entries(exports).map(([entry, { types, default: module }]) => {
    const paths = { types: join('libs/client', types), default: join('libs/client', module) };
    tree.add(paths.types, 'types');
    tree.add(paths.default, 'js');
    return [entry, { types: `./${paths.types}`, default: `./${paths.default}` }] as const;
  });
  const main = entries.find(([entry]) => entry === '.')![1];
  const models = 'libs/client/dist/models';
  tree.addText(`${models}.js`, MODELS, 'js');
  tree.addText(`${models}.d.ts`, MODELS, 'types');
  const { own, special } = split(exactVersions(project, tree.dependencies), PEERS);
  const manifest = {
    ...about('@shoal/client', version, 'Vectors, similarity and reranking from Shoal’s workers, over Redis or Valkey'),
    type: 'module',
    // Read by those who do not know `exports` (TypeScript's node10).
    main: main.default,
    types: main.types,
    exports: {
      ...Object.fromEntries(entries),
      './models': { types: `./${models}.d.ts`, default: `./${models}.js` },
      './package.json': './package.json',
    },
    dependencies: own,
    peerDependencies: Object.fromEntries(Object.entries(special).map(([name, exact]) => [name, `^${exact}`])),
    peerDependenciesMeta: Object.fromEntries(Object.keys(special).map((name) => [name, { optional: true }])),
  };
  return put(out, manifest, [...tree.files, ...beside(project, 'client.md')]);
}

/** Command line, workers, HTTP and dashboard. */
export function packShoal({ project, out }: PackOptions): PackedPackage {
  const { version } = readJson(join(project, 'package.json')) as { readonly version: string };
  const tree = new PackedTree(project);
  for (const app of APPS) tree.add(`apps/${app}/dist/main.js`, 'js');
  const { own, special } = split(exactVersions(project, tree.dependencies), OPTIONAL);
  const runtime = runtimeVersion(project);
  const manifest = {
    ...about('shoal', version, 'Embedding and similarity jobs on BullMQ, batched to fit the GPU they run on'),
    type: 'module',
    bin: { shoal: 'bin/shoal.mjs' },
    exports: { './package.json': './package.json' },
    dependencies: own,
    optionalDependencies: {
      ...special,
      '@shoal/native-linux-x64-gnu': version,
      '@shoal/cuda-linux-x64': version,
      ...Object.fromEntries(RUNTIME_PLATFORMS.map(([os, cpu]) => [`@shoal/onnxruntime-${os}-${cpu}`, runtime])),
    },
  };
  const pages = filesBelow(join(project, 'docs'))
    .filter((path) => path.endsWith('.md') && !path.startsWith('lab/'))
    .map((path) => [`docs/${path}`, readFileSync(join(project, 'docs', path))] as const);
  return put(out, manifest, [
    ...tree.files,
    ['bin/shoal.mjs', readFileSync(join(TEXTS, 'shoal.mjs'))],
    ['README.md', readFileSync(join(project, 'README.md'))],
    ['LICENSE', readFileSync(join(project, 'LICENSE'))],
    ...pages,
  ]);
}

/** What Node loads on this platform, and its kernels for CPUs. `files`: where each file of the package comes from. */
export function packNative({ project, out }: PackOptions, files: Readonly<Record<string, string>>): PackedPackage {
  const what = 'Native code for Linux on x64 with glibc: similarity with SIMD kernels, and what opens CUDA libraries.';
  return packLibraries({ project, out }, '@shoal/native-linux-x64-gnu', what, files);
}

export function packCuda({ project, out }: PackOptions, files: Readonly<Record<string, string>>): PackedPackage {
  const what =
    'CUDA libraries for Linux on x64, for NVIDIA GPUs of compute capability 7.5 to 12.0: encoder, similarity.';
  return packLibraries({ project, out }, '@shoal/cuda-linux-x64', what, files);
}

function packLibraries(
  { project, out }: PackOptions,
  name: string,
  what: string,
  files: Readonly<Record<string, string>>,
): PackedPackage {
  const { version } = readJson(join(project, 'package.json')) as { readonly version: string };
  const manifest = { ...about(name, version, what), os: ['linux'], cpu: ['x64'], libc: ['glibc'] };
  const contents = Object.entries(files).map(([path, from]) => [path, readFileSync(from)] as const);
  return put(out, manifest, [
    ...contents,
    ['README.md', text('native.md', { name, what })],
    ['LICENSE', readFileSync(join(project, 'LICENSE'))],
  ]);
}

/** ONNX Runtime for each platform, out of the package in node_modules. */
export function packRuntimes({ project, out }: PackOptions): readonly PackedPackage[] {
  const origin = join(project, 'node_modules/onnxruntime-node');
  const version = runtimeVersion(project);
  return RUNTIME_PLATFORMS.map(([os, cpu]) => {
    const name = `@shoal/onnxruntime-${os}-${cpu}`;
    const libraries = `bin/napi-v6/${os}/${cpu}`;
    const names = readdirSync(join(origin, libraries)).filter((file) => !isSecondName(join(origin, libraries), file));
    const modules = readdirSync(join(origin, 'dist')).filter((file) => file.endsWith('.js'));
    const manifest = {
      ...about(name, version, `ONNX Runtime ${version} for Node.js on ${os}-${cpu} alone`),
      license: 'MIT',
      main: 'dist/index.js',
      os: [os],
      cpu: [cpu],
      dependencies: { 'onnxruntime-common': version },
    };
    return put(out, manifest, [
      ...modules.map((file) => [`dist/${file}`, withoutMaps(join(origin, 'dist', file))] as const),
      ...names.map((file) => [`${libraries}/${file}`, readFileSync(join(origin, libraries, file))] as const),
      ['README.md', text('onnxruntime.md', { name, version, platform: `${os}-${cpu}` })],
      ['LICENSE', readFileSync(join(TEXTS, 'mit-microsoft.txt'))],
    ]);
  });
}

/** macOS' library is there under its full name as well, byte for byte: what opens it asks for the short one. */
function isSecondName(folder: string, file: string): boolean {
  const short = /^(libonnxruntime\.\d+)\.[\d.]+\.dylib$/.exec(file)?.[1];
  if (short === undefined || !existsSync(join(folder, `${short}.dylib`))) return false;
  return readFileSync(join(folder, file)).equals(readFileSync(join(folder, `${short}.dylib`)));
}

function runtimeVersion(project: string): string {
  return exactVersions(project, new Set(['onnxruntime-node']))['onnxruntime-node']!;
}

function about(name: string, version: string, description: string): Json {
  return {
    name,
    version,
    description,
    keywords: ['embeddings', 'bullmq', 'redis', 'valkey', 'similarity', 'onnx'],
    license: 'Apache-2.0',
    engines: ENGINES,
    publishConfig: { access: 'public' },
  };
}

/** As the manifests of the workspace ask for them: exactly, and all in the same version. */
function exactVersions(project: string, names: ReadonlySet<string>): Readonly<Record<string, string>> {
  const manifests = ['libs', 'apps'].flatMap((kind) =>
    readdirSync(join(project, kind)).map((name) => readJson(join(project, kind, name, 'package.json'))),
  ) as readonly { readonly dependencies?: Readonly<Record<string, string>> }[];
  return Object.fromEntries(
    [...names].toSorted().map((name) => {
      const [version, another] = new Set(manifests.flatMap(({ dependencies }) => dependencies?.[name] ?? []));
      if (version === undefined) throw new Error(`${name} is imported, and no manifest asks for it`);
      if (another !== undefined) throw new Error(`${name} is asked for as ${version} and as ${another}`);
      return [name, version];
    }),
  );
}

function split(
  all: Readonly<Record<string, string>>,
  special: ReadonlySet<string>,
): { readonly own: Readonly<Record<string, string>>; readonly special: Readonly<Record<string, string>> } {
  const entries = Object.entries(all);
  return {
    own: Object.fromEntries(entries.filter(([name]) => !special.has(name))),
    special: Object.fromEntries(entries.filter(([name]) => special.has(name))),
  };
}

function beside(project: string, readme: string): readonly (readonly [string, string | Buffer])[] {
  return [
    ['README.md', readFileSync(join(TEXTS, readme))],
    ['LICENSE', readFileSync(join(project, 'LICENSE'))],
  ];
}

function put(out: string, manifest: Json, files: Iterable<readonly [string, string | Buffer]>): PackedPackage {
  const { name, version } = manifest as { readonly name: string; readonly version: string };
  const folder = join(out, name.replace('@', '').replace('/', '-'));
  rmSync(folder, { recursive: true, force: true });
  for (const [path, content] of files) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), content, { mode: path.startsWith('bin/shoal') ? 0o755 : 0o644 });
  }
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`);
  return { name, version, folder };
}

function text(file: string, words: Readonly<Record<string, string>>): string {
  return readFileSync(join(TEXTS, file), 'utf8').replaceAll(/\{(\w+)\}/g, (_, word: string) => words[word] ?? '');
}

function withoutMaps(path: string): string {
  return readFileSync(path, 'utf8').replace(/\n\/\/# sourceMappingURL=.*\n?$/, '\n');
}

function readJson(path: string): Json {
  return JSON.parse(readFileSync(path, 'utf8')) as Json;
}
