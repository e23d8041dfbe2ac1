// A cluster as its nodes tell of themselves, put together: who is there, who is only heard of, and how each link is.

import { count, span } from './format';
import type { MetaMember, Membership, NodeInfo, NodeLink, UnjoinedPeer, Page } from './types';

export type Health = 'good' | 'warn' | 'bad';

export interface Member {
  name: string;
  role: 'core' | 'replicant';
  region: string;
  /** `null`: it did not answer. */
  info: NodeInfo | null;
  /** Nodes of which nothing is heard there, or that hear nothing of it. */
  suspectedBy: string[];
  /** What the cores agree on of it; `null` where they agree on nothing, or not on this node. */
  agreed: MetaMember | null;
  /** It leads the cores, and a majority of them is there. */
  leads: boolean;
  state: string;
  health: Health;
  rates: { in: number; out: number } | null;
}

/** One direction of a link: what `from` sees of `to`. */
export interface Seen extends NodeLink {
  from: string;
  /** Bytes a second since the look before; `null` where that knows nothing of the same link. */
  rates: { sent: number; received: number } | null;
}

/** Both directions. */
export interface Pair {
  a: string;
  b: string;
  health: Health;
  roundTripMs: number | null;
  /** Bytes a second from `a` to `b`, and back. */
  load: { there: number; back: number } | null;
  seen: Seen[];
  /** One of the two hears of subscriptions through the other. */
  attached: boolean;
}

export interface Look {
  at: number;
  page: Page<NodeInfo>;
  /** `null`: the nodes are a list, or there is only one. */
  membership: Membership | null;
  /** As the node that is asked knows it. */
  unjoinedPeers: UnjoinedPeer[];
}

/** Percent of frames sent again, and seconds that frames have waited, from which on a link is looked at. */
const RETRANSMITTED_MAX = 1;
const OLDEST_MAX = 5;

export function members(now: Look, before: Look | null): Member[] {
  const found = new Map<string, Member>();
  const heard = (name: string, role: Member['role'], region: string): Member => {
    const known = found.get(name);
    if (known) return known;
    const member: Member = { name, role, region, info: null, suspectedBy: [], agreed: null, leads: false, state: 'no answer', health: 'bad', rates: null };
    found.set(name, member);
    return member;
  };
  for (const info of now.page.items) {
    const member = heard(info.name, info.cluster?.role ?? 'core', info.cluster?.region ?? '');
    member.info = info;
    member.rates = rates(info, now.at, before);
    const held = info.cluster?.acknowledging === false;
    const off = (info.cluster?.clock_offset_s ?? null) !== null;
    member.state = info.state !== 'ready' ? info.state : held ? 'not acknowledging' : off ? 'wrong clock' : 'ready';
    member.health = member.state === 'ready' ? 'good' : 'warn';
  }
  for (const info of now.page.items) {
    for (const link of info.cluster?.links ?? []) {
      const member = heard(link.node, link.role, link.region);
      if (link.state === 'suspect') member.suspectedBy.push(info.name);
    }
  }
  for (const agreed of now.membership?.members ?? []) {
    const member = heard(agreed.node, agreed.role, agreed.region);
    member.agreed = agreed;
    member.leads = agreed.leads && now.membership?.stale === false;
    if (!member.info && agreed.state !== 'alive') member.state = agreed.state;
    if (member.info && agreed.state !== 'alive') member.health = 'warn';
  }
  for (const member of found.values()) {
    if (member.info && member.suspectedBy.length > 0) member.health = 'warn';
  }
  return [...found.values()].sort((a, b) => (a.region < b.region ? -1 : a.region > b.region ? 1 : a.name < b.name ? -1 : 1));
}

function rates(info: NodeInfo, at: number, before: Look | null): Member['rates'] {
  const then = before?.page.items.find((one) => one.name === info.name);
  if (!before || !then || then.started_at !== info.started_at) return null;
  const seconds = (at - before.at) / 1000;
  if (seconds <= 0) return null;
  const rate = (now: number, earlier: number) => Math.max(0, (now - earlier) / seconds);
  return { in: rate(info.messages_received, then.messages_received), out: rate(info.messages_sent, then.messages_sent) };
}

/** What a member is to the agreement of the cores. */
export function vote(member: MetaMember, membership: Membership): string | null {
  if (member.leads) return membership.stale ? 'led' : 'leads';
  if (member.votes) return 'votes';
  return membership.replica !== null || member.role === 'replicant' ? 'no' : null;
}

/** What the cores agree on of a member's life. */
export const life = (member: MetaMember, membership: Membership) => (membership.stale && member.state === 'alive' ? 'was alive' : member.state);

/** Whether a majority of cores agrees, as the node that is asked knows it; `null` where that is not known. */
export function quorum(membership: Membership | null): { good: boolean; text: string } | null {
  if (!membership) return null;
  if (membership.waits_for) return { good: false, text: `This node is no member yet: ${membership.waits_for}` };
  const replica = membership.replica;
  const known = 'Who is alive and who leads is shown as last known.';
  if (!replica) return membership.stale ? { good: false, text: `No majority of cores: this node hears of none that lets it acknowledge, and publishers at QoS 1 and 2 wait. ${known}` } : null;
  if (replica.failure) return { good: false, text: `This core takes no part in what the others agree on: ${replica.failure}` };
  if (!replica.quorum) return { good: false, text: `No quorum: this core hears no majority of the ${replica.voters} that vote. Nodes neither join nor are given up. ${known}` };
  const by = replica.leader_via === null ? '' : `, heard by way of ${replica.leader_via}`;
  const leader = replica.leader === null ? 'nobody leads' : `${replica.leader} leads${by}`;
  return { good: true, text: `quorum of ${replica.voters} votes, ${leader}` };
}

export function seen(now: Look, before: Look | null): Seen[] {
  const then = new Map(before?.page.items.map((info) => [info.name, info]));
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  return now.page.items.flatMap((info) => {
    const earlier = then.get(info.name);
    const known = seconds > 0 && earlier?.started_at === info.started_at ? (earlier.cluster?.links ?? []) : [];
    return (info.cluster?.links ?? []).map((link) => {
      const old = known.find((one) => one.node === link.node);
      // A link that was forgotten counts from nothing again.
      const rate = (bytes: number, earlier: number) => Math.max(0, (bytes - earlier) / seconds);
      const rates = old ? { sent: rate(link.bytes_sent, old.bytes_sent), received: rate(link.bytes_received, old.bytes_received) } : null;
      return { ...link, from: info.name, rates };
    });
  });
}

export function healthOf(link: NodeLink): Health {
  if (link.state !== 'up') return 'bad';
  return link.retransmitted_percent > RETRANSMITTED_MAX || link.oldest_s > OLDEST_MAX ? 'warn' : 'good';
}

/** How far a clock is from another one. */
export const apart = (ahead: number) => `${span(Math.abs(ahead))} ${ahead < 0 ? 'behind' : 'ahead'}`;

/** Of wrong clocks as many are named. */
const CLOCKS_MAX = 3;

/** Clocks that are wrong, a sentence each: of nodes that differ from most, and of two where nobody knows which it is. */
export function clocks(page: Page<NodeInfo>, all: Seen[]): string[] {
  const off = (info: NodeInfo) => info.cluster?.clock_offset_s ?? null;
  const wrong = new Set(page.items.filter((info) => off(info) !== null).map((info) => info.name));
  const own = page.items.flatMap((info) => (off(info) === null ? [] : [`The clock of ${info.name} is ${apart(off(info)!)}${off(info)! < 0 ? '' : ' of'} those of most nodes.`]));
  const pairs = new Set<string>();
  const unsure = all.flatMap((one) => {
    const pair = [one.from, one.node].sort().join(' ');
    if (!one.clock_differs || one.clock_ahead_s === null || wrong.has(one.from) || wrong.has(one.node) || pairs.has(pair)) return [];
    pairs.add(pair);
    return [`The clock of ${one.node} is ${apart(one.clock_ahead_s)}${one.clock_ahead_s < 0 ? '' : ' of'} that of ${one.from}.`];
  });
  const told = [...own, ...unsure];
  return told.length <= CLOCKS_MAX ? told : [...told.slice(0, CLOCKS_MAX), `${count(told.length - CLOCKS_MAX)} more.`];
}

const worse: Record<Health, number> = { good: 0, warn: 1, bad: 2 };

export function pairs(page: Page<NodeInfo>, all: Seen[]): Pair[] {
  const found = new Map<string, Pair>();
  const attached = new Map(page.items.map((info) => [info.name, info.cluster?.attached_to]));
  for (const one of all) {
    const [a, b] = one.from < one.node ? [one.from, one.node] : [one.node, one.from];
    const key = JSON.stringify([a, b]);
    const pair = found.get(key) ?? { a, b, health: 'good' as Health, roundTripMs: null, load: null, seen: [], attached: attached.get(a) === b || attached.get(b) === a };
    pair.seen.push(one);
    // What it was once says nothing of a link over which nothing comes.
    if (one.state === 'up') pair.roundTripMs ??= one.round_trip_ms;
    if (one.rates) pair.load ??= one.from === a ? { there: one.rates.sent, back: one.rates.received } : { there: one.rates.received, back: one.rates.sent };
    const health = healthOf(one);
    if (worse[health] > worse[pair.health]) pair.health = health;
    found.set(key, pair);
  }
  for (const pair of found.values()) if (pair.health === 'bad') pair.roundTripMs = null;
  return [...found.values()];
}
