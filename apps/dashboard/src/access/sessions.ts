// Sessions of people who logged in with a key: a cookie that only this process can have signed, and nothing kept of it.
// It names the key by its id, which is looked up at each request, so that a key that is revoked ends its sessions. Also
// the tokens that forms carry: a page of somebody else cannot know them.

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

export const COOKIE = 'shoal_session';
const LIFE_MS = 12 * 3_600_000;

export interface Session {
  readonly keyId: string;
  /** The cookie's value, which forms are bound to. */
  readonly text: string;
}

export class Sessions {
  private readonly secret = randomBytes(32);

  /** Value of a new cookie. */
  open(keyId: string, nowMs: number): string {
    const text = `${keyId}.${nowMs + LIFE_MS}.${randomBytes(16).toString('base64url')}`;
    return `${text}.${this.signed(`session ${text}`)}`;
  }

  /** The session of a request's Cookie header; undefined where there is none of ours, or its time is over. */
  find(cookies: string | undefined, nowMs: number): Session | undefined {
    const text = valueIn(cookies);
    const [, body, keyId, endMs, signature] =
      /^(([a-z0-9]{10})\.(\d{1,16})\.[\w-]{22})\.([\w-]{43})$/.exec(text ?? '') ?? [];
    if (text === undefined || body === undefined || keyId === undefined || signature === undefined) return undefined;
    const isOurs = isSame(signature, this.signed(`session ${body}`));
    return isOurs && Number(endMs) > nowMs ? { keyId, text } : undefined;
  }

  /** What forms of this session, or of this person behind a proxy, carry. */
  formToken(of: string): string {
    return this.signed(`form ${of}`);
  }

  isFormToken(token: string, of: string): boolean {
    return isSame(token, this.formToken(of));
  }

  private signed(text: string): string {
    return createHmac('sha256', this.secret).update(text).digest('base64url');
  }
}

/** For Set-Cookie. `isSecure`: the browser speaks TLS to a proxy in front. */
export function cookieOf(value: string, isSecure: boolean): string {
  return `${COOKIE}=${value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=${LIFE_MS / 1_000}${isSecure ? '; Secure' : ''}`;
}

/** For Set-Cookie, to end it. */
export const NO_COOKIE = `${COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0`;

function valueIn(cookies: string | undefined): string | undefined {
  for (const cookie of cookies?.split(';') ?? []) {
    const [name, value] = cookie.trim().split('=');
    if (name === COOKIE) return value;
  }
  return undefined;
}

/** In a time that does not depend on how much of both agrees. */
function isSame(a: string, b: string): boolean {
  const [one, other] = [Buffer.from(a), Buffer.from(b)];
  return one.length === other.length && timingSafeEqual(one, other);
}
