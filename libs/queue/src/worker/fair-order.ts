// Decides who is next: gives every waiting job its place in line by start-time fair queueing over tenants. BullMQ keeps
// the line (the sorted set `prioritized`, lowest score first); the scores are Shoal's own. Jobs arrive in BullMQ's
// `wait` list, whoever adds them and by whatever means; a worker calls this script before it claims, so that a plain
// BullMQ job takes no turn before it has a place. Claims nothing and looks into nothing but who asks, of which class,
// and how much.
//
// The rule, in units of 1/16 token. A *flow* is a tenant and a class. `now` is the virtual time: the place at the head
// of the line, which never goes back while somebody waits. A job's place is
//     max(now − lead, where its flow's last job ends),   and it ends its length further on.
// So whoever waits alone for long moves up, whoever asked for little goes first, and many jobs of one tenant alternate
// with those of another. An interactive token is as long as 1/256 of a bulk token and its lead is larger: interactive
// jobs go before bulk ones without ever stopping them (a tenant that never ceases uses its lead up, and then shares 256
// : 1).
//
// A tenant "acme/alice" is a user of acme and has no turns of her own: her jobs go where acme's would, but for what she
// has had little of (`USER_LEAD_TOKENS`, less what the virtual time has moved on since), which goes before what acme's
// other users have waiting. Such jobs have a flow of their own among acme's and are charged to acme's as well. So users
// that are made up gain acme one more turn for each of others while it has work waiting, and nothing after that.
//
// Places of interactive jobs are odd, those of bulk jobs even: so whoever has room for interactive ones alone sees how
// many of them are next. Places lie between −2^53 and 0. BullMQ's own scores are 2^32 and above (a priority that a
// producer chose), so those are told apart, come last until they are given a place, and its 21 bits of priority are no
// limit here: 2^53 units are two years of a device that runs 8 million tokens a second without one moment of an empty
// line, which begins anew.
//
// Why: docs/decisions/claiming-and-order.md#the-order-of-waiting-jobs-is-our-own-score-in-bullmqs-sorted-set

import { INTERACTIVE_ROWS, invariant, keySpace } from '@shoal/contract';
import { LEAD_TOKENS } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { runScript } from '../redis/script.ts';
import { ORDER_JOBS } from './lua/scripts.generated.ts';

/**
 * About 1,300 short texts: what a user of a tenant may have had lately and still go before what the tenant's other users
 * have waiting.
 */
const USER_LEAD_TOKENS = 2 ** 16;

export interface FairOrderOptions {
  readonly prefix: string;
  readonly queue: string;
  /** Most jobs that get their place in one call; the server does nothing else meanwhile. */
  readonly mostJobs?: number;
}

/** 256 keyed jobs of 64 rows take the server about 1.7 ms (Valkey 9.1, 2026-11). */
export const MOST_JOBS = 256;

/** How many jobs wait: in line, and without a place in it. */
export interface WaitingOrder {
  readonly placed: number;
  readonly unplaced: number;
  /** Interactive ones that are next in line; counted up to 16. */
  readonly urgent: number;
  /** Ids that no job may have; they were set aside in this call. */
  readonly setAside: number;
}

/** Gives jobs their places. Some may have none afterwards, because one call orders no more than `mostJobs`. */
export async function orderWaiting(
  connection: Redis,
  { prefix, queue, mostJobs = MOST_JOBS }: FairOrderOptions,
  signal?: AbortSignal,
): Promise<WaitingOrder> {
  const keys = keySpace(prefix);
  const [reply] = await runScript(
    connection,
    ORDER_JOBS,
    [
      [
        `${prefix}:${queue}:wait`,
        `${prefix}:${queue}:prioritized`,
        keys.order(queue),
        keys.job(queue, ''),
        keys.input(queue, ''),
        mostJobs,
        LEAD_TOKENS,
        USER_LEAD_TOKENS,
        INTERACTIVE_ROWS,
      ],
    ],
    { signal },
  );
  invariant(Array.isArray(reply), 'the order script answers with four numbers');
  return { unplaced: Number(reply[0]), placed: Number(reply[1]), urgent: Number(reply[2]), setAside: Number(reply[3]) };
}
