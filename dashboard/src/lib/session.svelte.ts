// Who is using the dashboard: the token, where it is kept, and the role that the node says it has.

import { call } from './api';
import type { Role, WhoAmI } from './types';

const KEY = 'meridian.token';
const RANK: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

function stored(): string | null {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

class Session {
  token = $state.raw<string | null>(stored());
  who = $state.raw<WhoAmI | null>(null);
  /** The node wants a token: the sign-in form is shown. */
  asking = $state(false);
  /** Why the last token was refused. */
  refusal = $state('');
  /** Grows with every sign-in; what depends on it loads again. */
  epoch = $state(0);

  can(role: Role): boolean {
    return this.who !== null && RANK[this.who.role] >= RANK[role];
  }

  /** What to say on a control that `role` is needed for; nothing when it may be used. */
  why(role: Role): string | undefined {
    return this.can(role) ? undefined : `Needs the role ${role}`;
  }

  async start() {
    this.who = await call<WhoAmI>('GET', '/api/v1/whoami');
    this.asking = false;
  }

  /** A request that was sent with `token` was answered 401. */
  refuse(token: string | null, detail: string) {
    if (token !== this.token) return;
    this.refusal = token ? detail : '';
    this.who = null;
    this.asking = true;
  }

  async signIn(token: string, remember: boolean) {
    this.token = token;
    await this.start();
    this.refusal = '';
    try {
      this.#forget();
      (remember ? localStorage : sessionStorage).setItem(KEY, token);
    } catch {
      // Storage may be closed to us: the token then lives as long as the page.
    }
    this.epoch++;
  }

  #forget() {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  }

  signOut() {
    this.token = null;
    this.who = null;
    this.refusal = '';
    try {
      this.#forget();
    } catch {
      // Nothing was stored then.
    }
    this.asking = true;
  }
}

export const session = new Session();
