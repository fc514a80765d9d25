// Variables of the environment that begin as ours do and are none: those that Kubernetes puts into every container for
// every service of its namespace (a service "shoal-http" makes SHOAL_HTTP_PORT=tcp://10.0.0.7:80), and names that are
// misspelt. Neither is ever taken for a setting; whoever set one is told, because a setting that is silently not in force
// costs a night.

import { editDistance } from '../base/edit-distance.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * What is no setting and is read all the same (docs/switches.md): by name, or by what its name begins with. A test
 * compares the list with that page.
 */
const SWITCHES = [
  'SHOAL_FORCE_CPU',
  'SHOAL_ONNX_RUNTIME',
  'SHOAL_URL',
  'SHOAL_API_KEY',
  'SHOAL_SCREENSHOTS',
  'SHOAL_EXECUTOR_SETTINGS',
  'SHOAL_LANE_WORKER',
  'SHOAL_ENCODER_OUT',
];
const SWITCH_STARTS = /^SHOAL_(TEST|FAULT|STAND_IN|CUDA_(LAUNCHES|SPREAD|COARSE)|NATIVE)(_|$)/;

/** As Kubernetes' "Accessing the Service" names them: host, port by name, and Docker's links of each port. */
const LINK_NAME =
  /^SHOAL(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$/;
const LINK_VALUE = /^(tcp|udp|sctp):\/\/\S+:\d+$/;

/** Whether this is a service link of Kubernetes and no setting, whatever its name is. */
export function isServiceLink(name: string, value: string | undefined): boolean {
  return LINK_NAME.test(name) || (/^SHOAL(_[A-Z0-9]+)*_PORT$/.test(name) && LINK_VALUE.test(value ?? ''));
}

/** One sentence for all service links, one for each name that is neither in `settings` nor a switch. */
export function straysIn(environment: Environment, settings: readonly string[]): readonly string[] {
  const given = Object.entries(environment).filter(
    ([name, value]) => name.startsWith('SHOAL_') && (value ?? '') !== '',
  );
  const known = [...settings, ...SWITCHES];
  const links = given.flatMap(([name, value]) => (isServiceLink(name, value) ? [name] : []));
  const strays = given.flatMap(([name, value]) =>
    isServiceLink(name, value) || known.includes(name) || SWITCH_STARTS.test(name) ? [] : [name],
  );
  return [...(links.length === 0 ? [] : [saidOfLinks(links)]), ...strays.toSorted().map((name) => saidOf(name, known))];
}

const MOST_NAMED = 3;

function saidOfLinks(links: readonly string[]): string {
  const named = links.toSorted().slice(0, MOST_NAMED).join(', ');
  const more = links.length > MOST_NAMED ? ` and ${links.length - MOST_NAMED} more` : '';
  return (
    `${named}${more}: Kubernetes names services of the namespace so; no setting is taken from them. ` +
    'enableServiceLinks: false in the pod keeps them out'
  );
}

function saidOf(name: string, known: readonly string[]): string {
  const near = nearest(name, known);
  const cure = near === undefined ? 'docs/settings.md lists all settings' : `did you mean ${near}?`;
  return `${name} is no setting of this version and changes nothing; ${cure}`;
}

/** A third of a name may be wrong before it is rather another name. */
const WRONG_SHARE = 1 / 3;

/** The known name that the fewest changes of a letter make of it; undefined when it is like none. */
function nearest(name: string, known: readonly string[]): string | undefined {
  const own = name.slice('SHOAL_'.length);
  const byDistance = known
    .map((one) => ({ one, distance: editDistance(own, one.slice('SHOAL_'.length)) }))
    .toSorted((a, b) => a.distance - b.distance);
  const [first] = byDistance;
  return first !== undefined && first.distance <= own.length * WRONG_SHARE ? first.one : undefined;
}
