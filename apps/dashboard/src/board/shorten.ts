// What the dashboard shows of a job's data and return value: sizes and beginnings, never a vector and never a whole
// text. Takes anything at all, because anything may lie in a queue, and never throws.

const TEXT_CHARS = 80;
const MAX_FIELDS = 32;
const MAX_DEPTH = 4;

export function shorten(value: unknown, depth = 0): unknown {
  if (typeof value === 'string') return shortenText(value);
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return shortenArray(value, depth);
  if (depth >= MAX_DEPTH) return '{…}';
  const fields = Object.entries(value);
  const shown = fields.slice(0, MAX_FIELDS).map(([name, field]) => [shortenText(name), shorten(field, depth + 1)]);
  return Object.fromEntries(
    fields.length > MAX_FIELDS ? [...shown, ['…', `${fields.length - MAX_FIELDS} more fields`]] : shown,
  );
}

function shortenText(text: string): string {
  return text.length > TEXT_CHARS
    ? `${text.slice(0, TEXT_CHARS).toWellFormed()}… (${text.length.toLocaleString('en')} characters)`
    : text;
}

function shortenArray(items: readonly unknown[], depth: number): unknown {
  const [first] = items;
  if (items.length === 0) return [];
  if (typeof first === 'number') return `${count(items.length, 'number')}`;
  if (typeof first === 'string') return `${count(items.length, 'text')}, the first: ${shortenText(first)}`;
  if (depth >= MAX_DEPTH) return count(items.length, 'item');
  return items.length === 1
    ? [shorten(first, depth + 1)]
    : [shorten(first, depth + 1), `and ${count(items.length - 1, 'item')} more`];
}

function count(items: number, noun: string): string {
  return `${items.toLocaleString('en')} ${noun}${items === 1 ? '' : 's'}`;
}
