// Variables of the environment that look like settings and are none: those that Kubernetes and Docker make of a service
// called shoal-…, and names that were misspelt.

import { droppedVariables, environmentName, settingsSchema } from '@shoal/core';

export interface StrayVariables {
  readonly serviceLinks: readonly string[];
  readonly misspelt: readonly { readonly name: string; readonly nearest: string | undefined }[];
}

/** Of a Service: SHOAL_HTTP_SERVICE_HOST, SHOAL_HTTP_PORT_8080_TCP_ADDR, and SHOAL_HTTP_PORT=tcp://10.0.0.1:8080. */
const LINK_NAME = /_SERVICE_(?:HOST|PORT(?:_\w+)?)$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?$/;
const LINK_VALUE = /^(?:tcp|udp|sctp):\/\//;
/** Beside the settings: docs/switches.md. */
const SWITCHES =
  /^SHOAL_(?:TEST_|STAND_IN_|CUDA_|FAULT_|NATIVE_|EXECUTOR_SETTINGS$|FORCE_CPU$|HTTP_MASTER_KEY$|LANE_WORKER$|ONNX_RUNTIME$|ENCODER_OUT$|SCREENSHOTS$|API_KEY$|URL$)/;
/** More letters apart, and it was meant to be something else. */
const MOST_APART = 3;

export function strayVariables(environment: Readonly<Record<string, string | undefined>>): StrayVariables {
  const settings = Object.keys(settingsSchema.shape).map((key) => environmentName(key));
  const dropped = droppedVariables(environment).map(({ variable }) => variable);
  const known = new Set([...settings, ...dropped]);
  const ours = Object.entries(environment).filter(([name]) => name.startsWith('SHOAL_'));
  const strays = ours.filter((one) => !isLink(one)).map(([name]) => name);
  return {
    serviceLinks: ours.filter(isLink).map(([name]) => name),
    misspelt: strays
      .filter((name) => !known.has(name) && !SWITCHES.test(name))
      .map((name) => ({ name, nearest: nearestOf(name, settings) })),
  };
}

function isLink([name, value = '']: readonly [string, string | undefined]): boolean {
  return LINK_NAME.test(name) || LINK_VALUE.test(value);
}

function nearestOf(name: string, settings: readonly string[]): string | undefined {
  const [nearest] = settings
    .map((setting) => ({ setting, apart: distance(name, setting) }))
    .toSorted((a, b) => a.apart - b.apart);
  return nearest !== undefined && nearest.apart <= MOST_APART ? nearest.setting : undefined;
}

/** Letters to change, add or take away (Levenshtein 1966, by rows). */
function distance(a: string, b: string): number {
  let above = Array.from({ length: b.length + 1 }, (_, at) => at);
  for (let row = 1; row <= a.length; row++) {
    const line = [row];
    for (let at = 1; at <= b.length; at++)
      line.push(Math.min(above[at]! + 1, line[at - 1]! + 1, above[at - 1]! + (a[row - 1] === b[at - 1] ? 0 : 1)));
    above = line;
  }
  return above[b.length]!;
}
