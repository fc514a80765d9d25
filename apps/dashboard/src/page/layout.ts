// What every page of ours has around it: head, the way to the other pages, a search by id, and who is logged in.

import type { Visitor } from '../access/visitor.ts';
import { html, type Child, type Html } from './html.ts';

export interface PageOptions {
  readonly title: string;
  readonly visitor: Visitor;
  /** Which way is here. */
  readonly here?: 'fleet' | 'quarantine' | 'queues' | undefined;
  /** What was searched for. */
  readonly searched?: string | undefined;
  readonly body: Child;
}

const WAYS = [
  ['fleet', '/', 'Fleet'],
  ['quarantine', '/quarantine', 'Quarantine'],
  ['queues', '/queues/', 'Queues (Bull Board)'],
] as const;

export function page({ title, visitor, here, searched, body }: PageOptions): string {
  const ways = WAYS.map(([name, href, text]) =>
    name === here ? html`<a href="${href}" aria-current="page">${text}</a>` : html`<a href="${href}">${text}</a>`,
  );
  return document(
    title,
    html`<a class="skip" href="#main">Skip to the content</a>
      <header>
        <div>
          <strong>Shoal</strong>
          <nav aria-label="Pages">${ways}</nav>
          <form class="search" action="/search" role="search">
            <input
              type="search"
              name="q"
              aria-label="Search a job by its id"
              placeholder="Job id, or its beginning with *"
              value="${searched ?? ''}"
              maxlength="256"
              required
            />
            <button type="submit">Search</button>
          </form>
        </div>
      </header>
      <main id="main">${body}</main>
      <footer class="soft">${whoIs(visitor)}</footer>`,
  );
}

/** A page without the ways to others: for who is not let in. */
export function barePage(title: string, body: Child): string {
  return document(title, html`<main id="main">${body}</main>`);
}

function document(title: string, body: Html): string {
  return html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="color-scheme" content="light dark" />
        <title>${title} · Shoal</title>
        <link
          rel="icon"
          href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M1 8q5-6 10 0 2-2 4-2v4q-2 0-4-2-5 6-10 0' fill='%230b6bcb'/%3E%3C/svg%3E"
        />
        <link rel="stylesheet" href="/page.css" />
        <script src="/page.js" defer></script>
      </head>
      <body>
        ${body}
      </body>
    </html>`.text;
}

function whoIs({ who, role, canLeave, csrf }: Visitor): Child {
  if (who === undefined)
    return html`<p>
      For looking only: no keys are set (<code>dashboardKeyFile</code>), so nobody may change anything here.
    </p>`;
  const leave = html`<form method="post" action="/logout">
    <input type="hidden" name="csrf" value="${csrf}" /><button class="small" type="submit">Log out</button>
  </form>`;
  return html`<div class="row"><span>${who}, ${role}</span>${canLeave && leave}</div>`;
}
