// Markup with everything in it escaped that somebody else wrote: names of workers, job ids and reasons may hold anything.
// What is markup is told apart from text by its type, so that neither can be taken for the other by mistake.

export class Html {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }

  toString(): string {
    return this.text;
  }
}

/** `false` and undefined are nothing; lists are joined. */
export type Child = Html | string | number | false | undefined | readonly Child[];

/** Markup; whatever is put in is escaped unless it is markup itself. For attributes too, between double quotes. */
export function html(parts: TemplateStringsArray, ...values: readonly Child[]): Html {
  return new Html(parts.reduce((text, part, at) => text + markupOf(values[at - 1]) + part));
}

function markupOf(value: Child): string {
  if (value === undefined || value === false) return '';
  if (value instanceof Html) return value.text;
  if (Array.isArray(value)) return value.map(markupOf).join('');
  return escaped(String(value));
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function escaped(text: string): string {
  return text.toWellFormed().replaceAll(/[&<>"']/g, (character) => ENTITIES[character] ?? character);
}
