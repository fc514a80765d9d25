// GitHub's links of bare addresses, as micromark has them, but that a bracket which is still open is found at once. There
// is no such link behind one, and the extension looks for it from the end of what was read, before each word anew:
// 10,000 words behind `![` took 8 s, and 0.2 s without the bracket (2026-11-27).

import type { Construct, Event, Extension, TokenizeContext } from 'micromark-util-types';

interface OpenBracket {
  readonly at: number;
  readonly event: Event;
}

/** `extension` is what `gfm()` gives; others of its constructs stay as they are. */
export function quickBareAddresses(extension: Extension): Extension {
  const text = Object.entries(extension.text ?? {}).map(([code, constructs]) => {
    const quick = [constructs ?? []].flat().map((one) => (one.name?.endsWith('utolink') ? quickConstruct(one) : one));
    return [code, quick];
  });
  return { ...extension, text: Object.fromEntries(text) };
}

const openBrackets = new WeakMap<TokenizeContext, OpenBracket>();

function quickConstruct(construct: Construct): Construct {
  return {
    ...construct,
    tokenize(effects, ok, nok) {
      return hasOpenBracket(this) ? nok : construct.tokenize.call(this, effects, ok, nok);
    },
  };
}

/** The last event is looked for that the extension would find, and the one that was found last first. */
function hasOpenBracket(context: TokenizeContext): boolean {
  const { events } = context;
  const known = openBrackets.get(context);
  if (known !== undefined && events[known.at] === known.event && isOpen(known.event)) return true;
  const at = events.findLastIndex((event) => isOpen(event) || wasSearched(event));
  if (at === -1 || !isOpen(events[at]!)) return false;
  openBrackets.set(context, { at, event: events[at]! });
  return true;
}

function isOpen([, { type, _balanced }]: Event): boolean {
  return (type === 'labelLink' || type === 'labelImage') && _balanced !== true;
}

/** The extension marks where it looked and found none: we go no further back than that. */
function wasSearched([, token]: Event): boolean {
  return '_gfmAutolinkLiteralWalkedInto' in token;
}
