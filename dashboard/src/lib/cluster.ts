// State of a cluster, combined from the answers of its nodes: members, links and clocks.

import { count, span } from './format';
import type { Drain, LedShard, Membership, MetaMember, NodeInfo, NodeLink, Page, Shards, UnjoinedPeer } from './types';

export type Health = 'good' | 'warn' | 'bad';

export interface Member {
  name: string;
  role: 'core' | 'replicant';
  region: string;
  /** `null`: the node did not answer. */
  info: NodeInfo | null;
  /** Nodes that suspect this one. */
  suspectedBy: string[];
  /** Its record in the meta group; `null`: there is no such record. */
  meta: MetaMember | null;
  /** It is the leader of the meta group, and the meta group has a quorum. */
  leads: boolean;
  state: string;
  health: Health;
  rates: { in: number; out: number } | null;
}

/** One direction of a link, as the node `from` reports it. */
export interface Seen extends NodeLink {
  from: string;
  /** Bytes per second since the previous snapshot; `null`: that one does not have this link. */
  rates: { sent: number; received: number } | null;
}

/** Link between two nodes, with both directions. */
export interface Pair {
  a: string;
  b: string;
  health: Health;
  roundTripMs: number | null;
  /** Bytes per second from `a` to `b`, and back. */
  load: { there: number; back: number } | null;
  seen: Seen[];
  /** One of the two is a replicant that is attached to the other. */
  attached: boolean;
}

/** Answers of the nodes at one time. */
export interface Snapshot {
  at: number;
  page: Page<NodeInfo>;
  /** `null`: the node belongs to no cluster. */
  membership: Membership | null;
  /** Unjoined peers of the node that answers. */
  unjoinedPeers: UnjoinedPeer[];
  /** `null`: each node has its own sessions. */
  shards: Shards | null;
  drains: Drain[];
}

/** Replica of a shard. */
export interface ShardReplica {
  node: string;
  /** Problem with it; `null`: it has everything. */
  problem: string | null;
}

/** Shard with what its leader knows about it. */
export interface Shard {
  number: number;
  leader: string | null;
  replicas: ShardReplica[];
  /** Replicas that come and go. */
  change: string | null;
  /** `null`: the leader has not reported it. */
  figures: LedShard | null;
  state: 'in order' | 'no leader' | 'behind' | 'changing';
}

/** A replica that lacks more records than this, or is silent for longer than these seconds, is behind. */
const BEHIND_MAX = 100;
const SILENT_MAX = 2;

/** A link is degraded above this percentage of retransmitted frames, or this age of the oldest frame in seconds. */
const RETRANSMITTED_MAX = 1;
const OLDEST_MAX = 5;

export function members(now: Snapshot, before: Snapshot | null): Member[] {
  const found = new Map<string, Member>();
  const memberOf = (name: string, role: Member['role'], region: string): Member => {
    const known = found.get(name);
    if (known) return known;
    const member: Member = { name, role, region, info: null, suspectedBy: [], meta: null, leads: false, state: 'no answer', health: 'bad', rates: null };
    found.set(name, member);
    return member;
  };
  for (const info of now.page.items) {
    const member = memberOf(info.name, info.cluster?.role ?? 'core', info.cluster?.region ?? '');
    member.info = info;
    member.rates = rates(info, now.at, before);
    const held = info.cluster?.acknowledging === false;
    const off = (info.cluster?.clock_offset_s ?? null) !== null;
    member.state = info.state !== 'ready' ? info.state : held ? 'not acknowledging' : off ? 'wrong clock' : 'ready';
    member.health = member.state === 'ready' ? 'good' : 'warn';
  }
  for (const info of now.page.items) {
    for (const link of info.cluster?.links ?? []) {
      const member = memberOf(link.node, link.role, link.region);
      if (link.state === 'suspect') member.suspectedBy.push(info.name);
    }
  }
  for (const record of now.membership?.members ?? []) {
    const member = memberOf(record.node, record.role, record.region);
    member.meta = record;
    member.leads = record.leads && now.membership?.stale === false;
    if (!member.info && record.state !== 'alive') member.state = record.state;
    if (member.info && record.state !== 'alive') member.health = 'warn';
  }
  for (const member of found.values()) {
    if (member.info && member.suspectedBy.length > 0) member.health = 'warn';
  }
  return [...found.values()].sort((a, b) => (a.region < b.region ? -1 : a.region > b.region ? 1 : a.name < b.name ? -1 : 1));
}

function rates(info: NodeInfo, at: number, before: Snapshot | null): Member['rates'] {
  const then = before?.page.items.find((one) => one.name === info.name);
  if (!before || !then || then.started_at !== info.started_at) return null;
  const seconds = (at - before.at) / 1000;
  if (seconds <= 0) return null;
  const rate = (now: number, earlier: number) => Math.max(0, (now - earlier) / seconds);
  return { in: rate(info.messages_received, then.messages_received), out: rate(info.messages_sent, then.messages_sent) };
}

/** Part of a member in the votes of the meta group. */
export function vote(member: MetaMember, membership: Membership): string | null {
  if (member.leads) return membership.stale ? 'led' : 'leads';
  if (member.votes) return 'votes';
  return membership.replica !== null || member.role === 'replicant' ? 'no' : null;
}

/** State of a member in the meta group. */
export const stateOf = (member: MetaMember, membership: Membership) => (membership.stale && member.state === 'alive' ? 'was alive' : member.state);

/** Quorum of the meta group, as the node that answers knows it; `null`: unknown. */
export function quorum(membership: Membership | null): { good: boolean; text: string } | null {
  if (!membership) return null;
  const part = membership.joined ? 'a member that serves no client' : 'not a member yet';
  if (membership.waits_for) return { good: false, text: `This node is ${part}: ${membership.waits_for}` };
  const replica = membership.replica;
  const known = 'The states and the leader are the last known ones.';
  if (!replica) return membership.stale ? { good: false, text: `No majority of the cores is reachable: this node does not acknowledge QoS 1 and 2, and their publishers wait. ${known}` } : null;
  if (replica.failure) return { good: false, text: `This core does not take part in the meta group: ${replica.failure}` };
  if (!replica.quorum) return { good: false, text: `No quorum: this core does not reach a majority of the ${replica.voters} voters. Nodes cannot join and are not declared dead. ${known}` };
  const by = replica.leader_via === null ? '' : `, reached through ${replica.leader_via}`;
  const leader = replica.leader === null ? 'no leader' : `leader ${replica.leader}${by}`;
  return { good: true, text: `quorum of ${replica.voters} ${replica.voters === 1 ? 'voter' : 'voters'}, ${leader}` };
}

export function seen(now: Snapshot, before: Snapshot | null): Seen[] {
  const then = new Map(before?.page.items.map((info) => [info.name, info]));
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  return now.page.items.flatMap((info) => {
    const earlier = then.get(info.name);
    const known = seconds > 0 && earlier?.started_at === info.started_at ? (earlier.cluster?.links ?? []) : [];
    return (info.cluster?.links ?? []).map((link) => {
      const old = known.find((one) => one.node === link.node);
      // The counters of a link restart at 0 when the node has removed it.
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

/** Shards by number, with the figures of their leaders. */
export function shards(now: Snapshot): Shard[] {
  const led = new Map(now.page.items.flatMap((info) => (info.cluster?.shards ?? []).map((shard) => [`${info.name} ${shard.shard}`, shard] as const)));
  return (now.shards?.items ?? []).map((shard) => {
    const figures = led.get(`${shard.leader} ${shard.shard}`) ?? null;
    const replicas = shard.replicas.map((node) => ({ node, problem: lag(figures?.replicas.find((one) => one.node === node)) }));
    const changes = [shard.joining === null ? [] : [`${shard.joining} joins`], shard.leaving === null ? [] : [`${shard.leaving} leaves`]].flat();
    const late = replicas.some((one) => one.problem !== null);
    const state = shard.leader === null ? 'no leader' : late ? 'behind' : changes.length > 0 ? 'changing' : 'in order';
    return { number: shard.shard, leader: shard.leader, replicas, change: changes.join(', ') || null, figures, state };
  });
}

/** What a replica lacks, in words; `null`: nothing, or its leader has not said it. */
function lag(replica: LedShard['replicas'][number] | undefined): string | null {
  if (!replica) return null;
  if (replica.silent_s === null) return 'does not answer';
  if (replica.silent_s > SILENT_MAX) return `silent for ${span(replica.silent_s)}`;
  if (replica.behind === null) return 'has nothing yet';
  return replica.behind > BEHIND_MAX ? `${count(replica.behind)} behind` : null;
}

/** Number of shards that each core leads, in words. */
export function leaders(all: Shard[]): string {
  const led = new Map<string, number>();
  for (const one of all) for (const { node } of one.replicas) led.set(node, led.get(node) ?? 0);
  for (const one of all) if (one.leader !== null) led.set(one.leader, (led.get(one.leader) ?? 0) + 1);
  const none = all.filter((one) => one.leader === null).length;
  const of = [...led].sort((a, b) => (a[0] < b[0] ? -1 : 1)).map(([node, number]) => `${node} leads ${count(number)}`);
  return [...of, ...(none > 0 ? [`${count(none)} without a leader`] : [])].join(' · ');
}

/** Difference between two clocks, in words. */
export const clockDifference = (ahead: number) => `${span(Math.abs(ahead))} ${ahead < 0 ? 'behind' : 'ahead'}`;

/** Maximum number of wrong clocks that are listed. */
const CLOCKS_MAX = 3;

/** One sentence per wrong clock: of a node that differs from most others, or of two nodes that differ from each other. */
export function clocks(page: Page<NodeInfo>, all: Seen[]): string[] {
  const off = (info: NodeInfo) => info.cluster?.clock_offset_s ?? null;
  const wrong = new Set(page.items.filter((info) => off(info) !== null).map((info) => info.name));
  const own = page.items.flatMap((info) => (off(info) === null ? [] : [`The clock of ${info.name} is ${clockDifference(off(info)!)}${off(info)! < 0 ? '' : ' of'} those of most nodes.`]));
  const pairs = new Set<string>();
  const unsure = all.flatMap((one) => {
    const pair = [one.from, one.node].sort().join(' ');
    if (!one.clock_differs || one.clock_ahead_s === null || wrong.has(one.from) || wrong.has(one.node) || pairs.has(pair)) return [];
    pairs.add(pair);
    return [`The clock of ${one.node} is ${clockDifference(one.clock_ahead_s)}${one.clock_ahead_s < 0 ? '' : ' of'} that of ${one.from}.`];
  });
  const sentences = [...own, ...unsure];
  return sentences.length <= CLOCKS_MAX ? sentences : [...sentences.slice(0, CLOCKS_MAX), `${count(sentences.length - CLOCKS_MAX)} more.`];
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
    // The round trip of a link that is down is outdated.
    if (one.state === 'up') pair.roundTripMs ??= one.round_trip_ms;
    if (one.rates) pair.load ??= one.from === a ? { there: one.rates.sent, back: one.rates.received } : { there: one.rates.received, back: one.rates.sent };
    const health = healthOf(one);
    if (worse[health] > worse[pair.health]) pair.health = health;
    found.set(key, pair);
  }
  for (const pair of found.values()) if (pair.health === 'bad') pair.roundTripMs = null;
  return [...found.values()];
}
