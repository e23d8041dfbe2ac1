// Actions on the members of a cluster. The texts are those of `meridian ctl cluster`: both read the same file.

import sentences from '../../../crates/ctl/src/commands/cluster/sentences.json';
import { call, post, put, remove } from './api';
import { dialogs, type Question } from './dialogs.svelte';
import { session } from './session.svelte';
import { attempt } from './toasts.svelte';
import type { MetaMember, Membership, NodeInfo } from './types';

export type Action = 'lead' | 'leave' | 'remove';

const of = (sentence: string, node: string) => sentence.replaceAll('{node}', node);
const begin = (sentence: string) => sentence.charAt(0).toUpperCase() + sentence.slice(1);

/** Actions on a member that the role of the session allows. */
export function actions(member: MetaMember, membership: Membership): Action[] {
  if (!session.can('admin')) return [];
  if (member.state === 'dead') return ['remove'];
  if (member.state !== 'alive') return [];
  // A replicant does not know the voters.
  const may = member.role === 'core' && !member.leads && (member.votes || membership.replica === null);
  return may ? ['lead', 'leave'] : ['leave'];
}

export const labels: Record<Action, string> = { lead: 'Transfer', leave: 'Leave', remove: 'Remove' };

export const named = (action: Action, node: string) => ({ lead: `Transfer leadership to ${node}`, leave: `Let ${node} leave the cluster`, remove: `Remove ${node}` })[action];

function question(action: Action, member: MetaMember, membership: Membership): Question {
  const { node } = member;
  const title = `${named(action, node)}?`;
  if (action === 'remove') return { title, text: of(sentences.remove.question, node), action: 'Remove', danger: true };
  if (action === 'lead') return { title, text: `${sentences.transfer.about}. ${sentences.transfer.effect}`, action: 'Transfer' };
  const cores = membership.members.filter((one) => one.role === 'core' && one.state === 'alive').length;
  const meanings: Record<string, string> = sentences.leave.cores_before;
  const meaning = member.role === 'core' ? meanings[cores] : undefined;
  return { title, text: [of(sentences.leave.question, node), meaning].filter(Boolean).join(' '), action: 'Leave', danger: true, option: sentences.leave.discard_sessions };
}

/** Runs an action after a confirmation and reports the result. Returns true if it was done. */
export async function change(action: Action, member: MetaMember, membership: Membership): Promise<boolean> {
  const { node } = member;
  const answer = await dialogs.ask(question(action, member, membership));
  if (!answer.yes) return false;
  return attempt(async () => {
    if (action === 'remove') await remove(`/api/v1/cluster/nodes/${encodeURIComponent(node)}`);
    else if (action === 'lead') await put('/api/v1/cluster/leader', { node });
    else await call('POST', '/api/v1/cluster/leave', { query: { node }, body: { discard_sessions: answer.option } });
    return begin(of(sentences[action === 'lead' ? 'transfer' : action].done, node));
  });
}

/** Spreads the replicants over the cores, after a confirmation. */
export async function balance(): Promise<boolean> {
  const answer = await dialogs.ask({ title: 'Balance the replicants?', text: `${sentences.balance.about}. ${sentences.balance.effect}`, action: 'Balance' });
  if (!answer.yes) return false;
  return attempt(async () => {
    await post('/api/v1/cluster/balance', undefined);
    return begin(sentences.balance.done);
  });
}

/** Takes the clients away from a node, after a confirmation. */
export async function drain(node: string): Promise<boolean> {
  const answer = await dialogs.ask({ title: `Drain ${node}?`, text: 'It refuses new clients until the drain is cancelled. Its clients connect to other nodes within about five minutes, and durable sessions lose nothing.', action: 'Drain' });
  if (!answer.yes) return false;
  return attempt(async () => {
    await put(`/api/v1/drains/${encodeURIComponent(node)}`, {});
    return begin(of(sentences.drain.begun, node));
  });
}

/** Lets a node accept clients again. */
export const undrain = (node: string): Promise<boolean> =>
  attempt(async () => {
    await remove(`/api/v1/drains/${encodeURIComponent(node)}`);
    return begin(of(sentences.drain.cancelled, node));
  });

/** Part of the mean by which a node may exceed it, in percent. */
const TOLERANCE = 10;

/** Spreads the clients over the nodes, after a confirmation. */
export async function rebalance(nodes: NodeInfo[]): Promise<boolean> {
  const open = nodes.filter((node) => node.accepts_clients);
  const mean = Math.ceil(open.reduce((sum, node) => sum + node.connections, 0) / Math.max(1, open.length));
  const many = open.filter((node) => node.connections > (mean * (100 + TOLERANCE)) / 100);
  const text = many.length === 0 ? 'No node has so many' : many.map((node) => `${node.name}: ${node.connections} to ${mean}`).join(', ');
  const answer = await dialogs.ask({ title: 'Rebalance the clients?', text: `Nodes with more clients than the mean and ${TOLERANCE} % disconnect the others, which connect again. ${text}.`, action: 'Rebalance' });
  if (!answer.yes || many.length === 0) return false;
  return attempt(async () => {
    await post('/api/v1/rebalance', { keep: Object.fromEntries(many.map((node) => [node.name, mean])) });
    return begin(sentences.rebalance.done);
  });
}
