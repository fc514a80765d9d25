// The model of the queue server as a process of a world: it hears over the simulated network, has a wall clock of its own
// and is woken when it asked to be.

import { ModelServer } from '../server/model-server.ts';
import { ownScripts } from '../server/own-scripts.ts';
import { scriptOf } from '../server/scripts.ts';
import { Network } from '../time/network.ts';
import type { Process, World, WorldEvent } from '../time/world.ts';
import type { Plan } from './plan.ts';

/** The product's, compiled once for all servers of this process. */
const OWN = (await ownScripts()).map(({ lua }) => scriptOf(Buffer.from(lua).toString('latin1')));

export class ServerHost {
  readonly process: Process;
  readonly network: Network;
  readonly model: ModelServer;
  private readonly world: World;
  private wake: WorldEvent | undefined;
  private wakeAt = Infinity;

  constructor(
    world: World,
    { latencyMs, faults, knowsScripts = false }: Pick<Plan, 'latencyMs' | 'faults' | 'knowsScripts'>,
  ) {
    this.world = world;
    this.process = world.newProcess('server');
    const { random } = this.process;
    const forgetsMs = Math.max(0, ...faults.map((fault) => (fault.kind === 'restart' ? fault.forgetMs : 0)));
    this.model = new ModelServer({
      now: () => world.wallMs(this.process),
      elapsed: () => world.nowMs,
      random: () => random.next(),
      keptMs: forgetsMs,
    });
    if (knowsScripts) for (const script of OWN) this.model.scripts.set(script.sha, script);
    this.network = new Network(world, this.process, (send) => this.model.connect(send), { latencyMs });
    this.network.onReceived = () => this.wakeLater();
  }

  /** It dies, what it acknowledged in the last `forgetMs` is lost, and it comes back. */
  restart({ downMs, forgetMs }: { readonly downMs: number; readonly forgetMs: number }): void {
    const { network, world } = this;
    network.isDown = true;
    network.cutAll();
    this.model.restart({ forgetMs });
    world.after(this.process, downMs, 'server is back', () => (network.isDown = false));
    this.wakeLater();
  }

  /** Its wall clock steps. */
  step(ms: number): void {
    this.process.wallOffsetMs += ms;
    this.wakeLater();
  }

  private wakeLater(): void {
    const { world } = this;
    const atMs = this.model.nextWake();
    const wakeAt = atMs === undefined ? Infinity : atMs - world.wallMs(this.process) + world.nowMs;
    if (wakeAt === this.wakeAt && this.wake?.isCancelled === false) return;
    if (this.wake !== undefined) this.wake.isCancelled = true;
    this.wakeAt = wakeAt;
    this.wake =
      wakeAt === Infinity
        ? undefined
        : world.at(this.process, wakeAt + 1, 'server wakes', () => {
            this.wakeAt = Infinity;
            this.model.wake();
            this.network.flush();
            this.wakeLater();
          });
  }
}
