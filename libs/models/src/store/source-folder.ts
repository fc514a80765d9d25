// The folder of a model that a person brings, read as what it may be: an archive from anybody, a clone without its
// large files, a snapshot of the hub's cache. A file is taken only when it lies inside the folder (or in the hub's own
// blobs beside it), is a regular file and not a Git LFS pointer; JSON has a size and a depth that models keep to.
// Everything else is refused by its name, and nothing outside of the folder is read.

import { constants, copyFile, link, lstat, mkdir, open, readdir, readFile, realpath, stat } from 'node:fs/promises';
import { dirname, join, sep } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';

/** Gemma's tokenizer.json, the largest that is known, has 33 MB. */
const MAX_JSON_BYTES = 100_000_000;
/** tokenizer.json nests seven levels deep. */
const MAX_JSON_DEPTH = 64;
const LFS_POINTER = 'version https://git-lfs.github.com/spec/';
const LFS_POINTER_BYTES = 1_024;
/** A snapshot in the hub's cache is a folder of links to blobs/ beside snapshots/. */
const SNAPSHOT = /^(.*)[/\\]snapshots[/\\][^/\\]+(?:[/\\].*)?$/;

export class SourceFolder {
  readonly path: string;
  readonly #allowed: readonly string[];
  readonly #isOurs: boolean;

  private constructor(path: string, allowed: readonly string[], isOurs: boolean) {
    this.path = path;
    this.#allowed = allowed;
    this.#isOurs = isOurs;
  }

  /** `isOurs`: nobody else writes these files, so one file may have two names instead of being there twice. */
  static async open(path: string, { isOurs = false } = {}): Promise<SourceFolder> {
    const real = await realpath(path);
    const hub = SNAPSHOT.exec(real)?.[1];
    return new SourceFolder(path, [real, ...(hub === undefined ? [] : [join(hub, 'blobs')])], isOurs);
  }

  /** Whether there is something of this name; what it is will be said when it is read. */
  async has(path: string): Promise<boolean> {
    return (await lstat(join(this.path, path)).catch(() => undefined)) !== undefined;
  }

  /** Names in a folder inside this one; none where it cannot be read. */
  async list(path = '.'): Promise<readonly string[]> {
    return (await readdir(join(this.path, path)).catch(() => [])).toSorted();
  }

  async readJson(path: string): Promise<CheckedJson> {
    return CheckedJson.parse(await this.readText(path), join(this.path, path));
  }

  /** Text of a JSON file that parsers can be given. */
  async readText(path: string): Promise<string> {
    const text = await this.readPlainText(path);
    refuseDeep(text, join(this.path, path));
    return text;
  }

  /** Text of a file that is no JSON. */
  async readPlainText(path: string): Promise<string> {
    const real = await this.#checked(path);
    const { size } = await stat(real);
    if (size > MAX_JSON_BYTES)
      throw corrupt(join(this.path, path), `has ${size} bytes; text of at most ${MAX_JSON_BYTES} bytes is read`);
    return (await readFile(real)).toString().replace(/^\uFEFF/, '');
  }

  async copy(path: string, to: string): Promise<void> {
    const real = await this.#checked(path);
    await mkdir(dirname(to), { recursive: true });
    const isLinked =
      this.#isOurs &&
      (await link(real, to).then(
        () => true,
        () => false,
      )); // not on every file system
    if (!isLinked) await copyFile(real, to, constants.COPYFILE_FICLONE);
  }

  /** Of these, all that are Git LFS pointers are named at once: they are fetched together. */
  async refusePointers(paths: readonly string[]): Promise<void> {
    const pointers: string[] = [];
    for (const path of paths) if ((await this.has(path)) && (await this.#isPointer(path))) pointers.push(path);
    if (pointers.length === 0) return;
    const [are, stand] = pointers.length === 1 ? ['is a Git LFS pointer', 'file'] : ['are Git LFS pointers', 'files'];
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${pointers.map((path) => join(this.path, path)).join(', ')} ${are} and not the ${stand} themselves: run ` +
        '"git lfs install" and "git lfs pull" in the clone, or fetch the model in another way',
      { folder: this.path, pointers },
    );
  }

  async #isPointer(path: string): Promise<boolean> {
    const real = await this.#checked(path);
    if ((await stat(real)).size > LFS_POINTER_BYTES) return false;
    return (await readFile(real)).toString('latin1').startsWith(LFS_POINTER);
  }

  /** Where the file really lies. */
  async #checked(path: string): Promise<string> {
    const full = join(this.path, path);
    const real = await realpath(full).catch((cause: Error) => {
      throw corrupt(full, `cannot be followed: ${cause.message}`, cause);
    });
    if (!this.#allowed.some((folder) => real.startsWith(folder + sep)))
      throw corrupt(full, `is a link that leads out of the folder, to ${real}: put the file itself in its place`);
    // a fifo would wait for a writer, and a device never ends
    if (!(await stat(real)).isFile()) throw corrupt(full, 'is no regular file');
    const readable = await open(real, constants.O_RDONLY | constants.O_NONBLOCK).catch((cause: Error) => {
      throw corrupt(full, `cannot be read: ${cause.message}`, cause);
    });
    await readable.close();
    return real;
  }
}

/** Parsers take any depth, and what walks their result does not. */
function refuseDeep(text: string, where: string): void {
  let [depth, isString] = [0, false];
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (isString) {
      if (char === 0x5c) at++;
      else if (char === 0x22) isString = false;
    } else if (char === 0x22) isString = true;
    else if (char === 0x5b || char === 0x7b) depth++;
    else if (char === 0x5d || char === 0x7d) depth--;
    if (depth > MAX_JSON_DEPTH) throw corrupt(where, `nests deeper than ${MAX_JSON_DEPTH} levels`);
  }
}

function corrupt(path: string, problem: string, cause?: unknown): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${path} ${problem}`, { path }, cause);
}
