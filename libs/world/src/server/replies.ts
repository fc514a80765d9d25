// What a command answers, before it is bytes or a value of Lua: a string of bytes, a whole number, null, a list, a status
// or an error.

import { NotModelled } from '../lua/values.ts';

export type Reply = string | number | null | Status | Failure | NoList | readonly Reply[];

/** `+OK` and its like. */
export class Status {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** `-WRONGTYPE …` and its like. The first word is the code that clients look at. */
export class Failure {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** The list that is not there: what a transaction that was watched in vain and a blocking command without luck answer. */
export class NoList {
  readonly isNoList = true;
}

export const OK = new Status('OK');
export const QUEUED = new Status('QUEUED');
export const NO_LIST = new NoList();

/** Thrown by commands, caught where they are run: the reply is its failure. */
export class CommandError extends Error {
  readonly failure: Failure;

  constructor(text: string) {
    super(text);
    this.failure = new Failure(text);
  }
}

export const wrongType = (): CommandError =>
  new CommandError('WRONGTYPE Operation against a key holding the wrong kind of value');
export const syntaxError = (): CommandError => new CommandError('ERR syntax error');
export const notInteger = (): CommandError => new CommandError('ERR value is not an integer or out of range');
/** What real servers do and the model does not: no reply, but an error of the simulation itself. */
export const notModelled = (what: string): NotModelled => new NotModelled(`the model does not have ${what}`);
