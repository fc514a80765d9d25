// For images.test.ts: images built by buildah and run by podman, without a daemon, without a registry and without a
// network of their own. Base images are stood in for by Debian from debootstrap and this machine's Node and npm. All of
// it lies in one folder below the cache, so that a second night has base and layers at once.

import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const BASE = 'localhost/node:stand-in';
const VALKEY = 'localhost/valkey:stand-in';
const UNPACK =
  'apt-get download -q redis-tools liblzf1 libjemalloc2 libhiredis0.14 libatomic1 libssl3 && for d in *.deb; do dpkg -x "$d" .; done && ' +
  'cp usr/bin/redis-cli . && cp -L usr/lib/x86_64-linux-gnu/*.so* libraries/ && rm -r usr ./*.deb';
/** Where packages come through an authority of one's own, its certificates are mounted for the build alone. */
const AUTHORITIES = ['/etc/ssl/certs', '/usr/share/ca-certificates', '/usr/local/share/ca-certificates'];

export interface Ran {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export class ContainerRig {
  private readonly folder: string;
  private readonly root: string;

  constructor({ root, folder }: { readonly root: string; readonly folder: string }) {
    this.root = root;
    this.folder = folder;
    mkdirSync(folder, { recursive: true });
    writeFileSync(
      join(folder, 'storage.conf'),
      `[storage]\ndriver = "overlay"\ngraphroot = "${join(folder, 'graph')}"\nrunroot = "${join(folder, 'run')}"\n`,
    );
    writeFileSync(
      join(folder, 'containers.conf'),
      '[containers]\ndefault_ulimits = []\nnetns = "host"\n' +
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
    );
    writeFileSync(join(folder, 'policy.json'), '{ "default": [{ "type": "insecureAcceptAnything" }] }\n');
  }

  get environment(): NodeJS.ProcessEnv {
    return {
      ...process.env,
      CONTAINERS_STORAGE_CONF: join(this.folder, 'storage.conf'),
      CONTAINERS_CONF: join(this.folder, 'containers.conf'),
    };
  }

  run(program: string, args: readonly string[], timeoutMs = 600_000, more: NodeJS.ProcessEnv = {}): Ran {
    const { status, stdout, stderr } = spawnSync(program, args, {
      cwd: this.root,
      env: { ...this.environment, ...more },
      encoding: 'utf8',
      timeout: timeoutMs,
      maxBuffer: 64e6,
    });
    return { status, stdout, stderr };
  }

  podman(...args: readonly string[]): Ran {
    return this.run('podman', args);
  }

  /** Debian with Node, npm and systemd's tools, which the Dockerfile is given as its base; two minutes the first time. */
  makeBase(dockerfile: string): string {
    if (this.podman('image', 'exists', BASE).status === 0) return BASE;
    const context = join(this.folder, 'base');
    rmSync(context, { recursive: true, force: true });
    mkdirSync(context);
    const rootfs = join(context, 'rootfs');
    must(this.run('debootstrap', ['--variant=minbase', '--include=ca-certificates,systemd', 'bookworm', rootfs]));
    must(this.run('tar', ['-C', rootfs, '-cf', join(context, 'rootfs.tar'), '.']));
    rmSync(rootfs, { recursive: true });
    cpSync(realpathSync(process.execPath), join(context, 'node'));
    cpSync(npmFolder(), join(context, 'npm'), { recursive: true });
    writeFileSync(join(context, 'Dockerfile'), readFileSync(dockerfile));
    must(this.build(['-t', BASE, context]));
    rmSync(context, { recursive: true });
    return BASE;
  }

  /** A script as root of a new container, with the project at /checkout; what it writes goes with it. */
  inBase(image: string, script: string): Ran {
    const { NODE_EXTRA_CA_CERTS = '' } = process.env;
    const shared = [
      this.root + ':/checkout:ro',
      ...AUTHORITIES.filter((path) => existsSync(path)).map((path) => `${path}:${path}:ro`),
    ];
    const mounts = shared.flatMap((each) => ['--volume', each]);
    const how = [
      '--rm',
      '--network',
      'host',
      '--security-opt',
      'seccomp=unconfined',
      '--env',
      `NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS}`,
    ];
    return this.podman('run', ...how, ...mounts, image, 'bash', '-euc', script);
  }

  /** Valkey's image: a program of this machine, and redis-cli out of Debian's packages. */
  makeValkey(dockerfile: string, program: string): void {
    if (this.podman('image', 'exists', VALKEY).status === 0) return;
    const context = join(this.folder, 'valkey');
    rmSync(context, { recursive: true, force: true });
    mkdirSync(join(context, 'libraries'), { recursive: true });
    must(this.run('sh', ['-euc', `cd '${context}' && ${UNPACK}`]));
    cpSync(realpathSync(program), join(context, 'valkey-server'));
    writeFileSync(join(context, 'Dockerfile'), readFileSync(dockerfile));
    must(this.build(['--build-arg', `BASE=${BASE}`, '-t', VALKEY, context]));
    rmSync(context, { recursive: true });
  }

  /** A target of infra/docker/Dockerfile. */
  buildTarget(target: string, tag: string, buildArgs: Readonly<Record<string, string>>): Ran {
    const { NODE_EXTRA_CA_CERTS = '', PIP_CERT = NODE_EXTRA_CA_CERTS } = process.env;
    const all = { NODE_IMAGE: BASE, CUDA_IMAGE: BASE, NODE_EXTRA_CA_CERTS, PIP_CERT, ...buildArgs };
    const given = Object.entries(all).flatMap(([name, value]) => ['--build-arg', `${name}=${value}`]);
    return this.build(['--layers', ...given, '-f', 'infra/docker/Dockerfile', '--target', target, '-t', tag, '.']);
  }

  private build(args: readonly string[]): Ran {
    const mounts = AUTHORITIES.filter((path) => existsSync(path)).flatMap((path) => ['-v', `${path}:${path}:ro`]);
    const policy = ['--signature-policy', join(this.folder, 'policy.json')];
    const how = ['bud', ...policy, '--format', 'docker', '--isolation', 'chroot', '--network', 'host'];
    return this.run('buildah', [...how, ...mounts, ...args], 1_100_000);
  }
}

export function must(ran: Ran): Ran {
  if (ran.status !== 0) throw new Error(`status ${ran.status}: ${ran.stdout.slice(-2_000)}${ran.stderr.slice(-4_000)}`);
  return ran;
}

/** The package of the npm on PATH. */
function npmFolder(): string {
  const cli = realpathSync(execFileSync('sh', ['-c', 'command -v npm'], { encoding: 'utf8' }).trim());
  return dirname(dirname(cli));
}
