// A producer as a process of a world: adds its jobs, hears and asks how they end, takes results, cancels. It keeps on its
// disk (`site.ended`) which jobs it is done with and nothing else, so that after its death the next life of it asks again
// for the rest, under the same ids.

import { setTimeout as sleep } from 'node:timers/promises';
import { isShoalError, parseFailedReason, type Failure } from '@shoal/contract';
import { Canceller, JobProducer, ResultReader, type AddResult, type JobEnding } from '@shoal/queue';
import type { Recorder } from '../history/recorder.ts';
import type { Process } from '../time/world.ts';
import { callClient } from './client-producer.ts';
import { mayBeQuarantined, type PlannedJob } from './plan.ts';
import { PREFIX, QUEUE, REDIS_URL, recorderOf, startAgain, type Site } from './site.ts';
import { makeJob, seen, type MadeJob } from './texts.ts';

const AGAIN_MS = 300;
/** A job that nobody spoke of for so long is asked for. */
const ASK_AFTER_MS = 2_000;
/** A worker knows the server's clock to within the time of a question. */
const DEADLINE_SLACK_MS = 2_500;
const TAKEN_KEPT_MS = 60_000;

export function keepProducer(site: Site, index: number): void {
  const { world, plan, targets } = site;
  const name = `producer ${index}` as const;
  const process = world.newProcess(name, plan.producers[index]!);
  targets.set(name, process);
  const jobs = plan.jobs.filter(({ producer, id }) => producer === index && !site.ended.has(id));
  if (jobs.length === 0) return;
  process.onDeath.push(() => startAgain(site, name, () => keepProducer(site, index)));
  world.start(process, async () => {
    try {
      if (plan.producers[index]!.kind === 'client') await callClient(site, process, jobs);
      else await new Producer(site, process).bringAll(jobs);
    } catch (error) {
      if (isShoalError(error)) return world.kill(process); // it says what it met and ends, as a program does
      throw error;
    }
  });
}

class Producer {
  private readonly site: Site;
  private readonly recorder: Recorder;
  private readonly waiting = new Map<string, () => void>();
  private producer: JobProducer | undefined;
  private reader: ResultReader | undefined;
  private canceller: Promise<Canceller> | undefined;

  constructor(site: Site, process: Process) {
    this.site = site;
    this.recorder = recorderOf(site, process);
  }

  async bringAll(jobs: readonly PlannedJob[]): Promise<void> {
    const { log, plan } = this.site;
    const server = { redisUrl: REDIS_URL, prefix: PREFIX, queue: QUEUE, log };
    this.producer = await JobProducer.connect({ ...server, limits: { maxQueuedRows: plan.maxQueuedRows } });
    this.reader = await ResultReader.connect({
      ...server,
      replyName: `producer-${Math.random().toString(36).slice(2)}`,
    });
    this.reader.onReply(({ completed, failed }) => {
      for (const id of [...completed, ...failed]) this.waiting.get(id)?.();
    });
    await Promise.all(jobs.map((job) => this.bring(job)));
    await Promise.all([this.producer.close(), this.reader.close(), this.canceller?.then((one) => one.close())]);
  }

  private async bring(job: PlannedJob): Promise<void> {
    const { world, tokenizer } = this.site;
    await sleep(Math.max(0, job.atMs - world.nowMs));
    const deadline = job.deadlineMs === undefined ? undefined : world.wallMs(this.site.network.host) + job.deadlineMs;
    const first = this.firstDeadline(job.id, deadline);
    const made = makeJob(job, tokenizer, {
      reply: this.reader!.replyChannel,
      ...(deadline === undefined ? {} : { deadline }),
    });
    let isCancelled = false;
    if (job.cancelAfterMs !== undefined)
      void sleep(job.cancelAfterMs).then(() => {
        isCancelled = true;
        return this.cancel(job.id);
      });
    const isWanted = (): boolean => !isCancelled;
    await this.askFor(job, made, first, isWanted);
    if (job.comesAgain === true && isWanted()) await this.askFor(job, made, first, isWanted, true);
    this.site.ended.add(job.id);
  }

  /** Until it has ended, or is not wanted any more. `isAnew`: this producer is done with an earlier life of it. */
  private async askFor(
    job: PlannedJob,
    made: MadeJob,
    deadline: number | undefined,
    isWanted: () => boolean,
    isAnew = false,
  ): Promise<void> {
    let [isOver, hurries] = [false, false];
    while (!isOver) {
      this.reader!.asksAnew([job.id]);
      const outcome = await this.add(made);
      if (outcome === 'refused') continue;
      // a server that forgets may have the life before it again, whose result was taken
      if (isAnew && outcome === 'added' && !this.isForgetful()) this.site.takes.delete(job.id);
      isOver = await this.awaitEnd(hurries ? { ...job, takeAfterMs: 0 } : job, made, deadline);
      hurries = true; // what it came too late for, it does not come too late for again
      isOver ||= !isWanted();
    }
  }

  /** What a producer wants that was killed and adds the job again does not move the deadline of one that waits. */
  private firstDeadline(id: string, deadline: number | undefined): number | undefined {
    const { deadlines } = this.site;
    if (deadline !== undefined) deadlines.set(id, Math.min(deadline, deadlines.get(id) ?? Infinity));
    return deadlines.get(id);
  }

  private async add({ job, fingerprint, want }: MadeJob): Promise<AddResult['outcome']> {
    for (;;) {
      const end = this.recorder.invoke('add', job.jobId, { fingerprint, want });
      try {
        const [result] = await this.producer!.add([job]);
        end('ok', { outcome: result!.outcome });
        if (result!.outcome === 'refused') await sleep(Number(result!.error.fields['retryAfterMs']));
        return result!.outcome;
      } catch (error) {
        end('unknown');
        await this.afterFault(error);
      }
    }
  }

  /** Whether nothing more is to be expected of the job; it is added again where the server lost it. */
  private async awaitEnd(job: PlannedJob, made: MadeJob, deadline: number | undefined): Promise<boolean> {
    for (;;) {
      await this.heardOf(job.id);
      const { state, failure } = await this.see(job.id);
      if (state === undefined || state === 'open') continue;
      if (state === 'failed') {
        this.judgeFailure(job, deadline, failure);
        return true;
      }
      if (state === 'completed' && job.isPoison === true)
        this.site.problems.push(`poison-completed: ${job.id} completed, and nobody survives its rows`);
      if (state === 'completed' && job.takeAfterMs > 0) await sleep(job.takeAfterMs);
      const taken = await this.take(job.id, made);
      if (taken === 'body' && job.takesTwice) await this.take(job.id, made);
      if (taken !== undefined) return taken !== 'absent';
    }
  }

  /** A job fails because it was cancelled, came too late, or its input was forgotten; never for anything else here. */
  private judgeFailure(job: PlannedJob, deadline: number | undefined, failure: Failure | undefined): void {
    const { plan, problems, world, network } = this.site;
    const say = (what: string): void => void problems.push(`unfit-failure: ${job.id} ${what}: ${failure?.message}`);
    switch (failure?.code) {
      case 'CANCELLED':
        return job.cancelAfterMs === undefined ? say('was cancelled by nobody') : undefined;
      case 'DEADLINE_PASSED': {
        if (deadline === undefined) return say('had no deadline');
        const earlyMs = deadline - world.wallMs(network.host);
        const hasStepped = plan.faults.some((fault) => fault.kind === 'clock' && fault.target === 'server');
        return earlyMs > DEADLINE_SLACK_MS && !hasStepped ? say(`failed ${earlyMs} ms before its deadline`) : undefined;
      }
      case 'QUARANTINED':
        return mayBeQuarantined(plan, job) ? undefined : say('was put in quarantine');
      case 'INPUT_LOST':
        return this.isForgetful() ? undefined : say('lost its input');
      default:
        return say(`failed with ${failure?.code}`);
    }
  }

  private heardOf(id: string): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ASK_AFTER_MS);
      this.waiting.set(id, () => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  private async see(id: string): Promise<{ state?: JobEnding['state']; failure?: Failure }> {
    const end = this.recorder.invoke('see', id);
    try {
      const [ending] = await this.producer!.endings([id]);
      const { state, failedReason } = ending!;
      const outcome = state === 'open' ? 'waiting' : state;
      const failure = failedReason === undefined ? undefined : parseFailedReason(failedReason);
      end('ok', { outcome, ...(failure === undefined ? {} : { code: failure.code }) });
      return { state, ...(failure === undefined ? {} : { failure }) };
    } catch (error) {
      end('unknown');
      await this.afterFault(error);
      return {};
    }
  }

  private async take(id: string, { want }: MadeJob): Promise<'body' | 'taken' | 'absent' | undefined> {
    const { takes, problems } = this.site;
    const isFirst = !takes.has(id);
    takes.add(id);
    const end = this.recorder.invoke('take', id);
    try {
      const [taken] = await this.reader!.acknowledge([id]);
      if (taken!.kind !== 'body') {
        end('ok', { outcome: taken!.kind });
        if (taken!.kind === 'taken' && isFirst && !this.mayHaveExpired())
          problems.push(`taken-by-nobody: ${id} was marked as taken before`);
        return taken!.kind;
      }
      const found = seen(taken!.bytes);
      end('ok', { outcome: 'body', ...found });
      if (found.got !== want) problems.push(`wrong-rows: ${id} got the vectors of other texts`);
      return 'body';
    } catch (error) {
      end('unknown');
      await this.afterFault(error);
      return undefined;
    }
  }

  private isForgetful(): boolean {
    return this.site.plan.faults.some((fault) => fault.kind === 'restart' && fault.forgetMs > 0);
  }

  /** What was taken and not fetched is kept for a minute, by the server's clock. */
  private mayHaveExpired(): boolean {
    return this.site.plan.faults.some(
      (fault) => fault.kind === 'clock' && fault.target === 'server' && fault.stepMs >= TAKEN_KEPT_MS,
    );
  }

  private async cancel(id: string): Promise<void> {
    const { log } = this.site;
    const end = this.recorder.invoke('cancel', id);
    try {
      this.canceller ??= Canceller.connect({ redisUrl: REDIS_URL, prefix: PREFIX, queue: QUEUE, log });
      const [result] = await (await this.canceller).cancel([id]);
      end('ok', { outcome: result!.outcome });
    } catch (error) {
      this.canceller = undefined;
      end('unknown');
      if (!isShoalError(error)) throw error;
    }
  }

  /** What is no fault that the product tells of is none of these processes' to survive. */
  private async afterFault(error: unknown): Promise<void> {
    if (!isShoalError(error)) throw error;
    await sleep(AGAIN_MS);
  }
}
