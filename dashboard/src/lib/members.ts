// Actions on the members of a cluster. The texts are those of `meridian ctl cluster`: both read the same file.

import sentences from '../../../crates/ctl/src/commands/cluster/sentences.json';
import { call, post, put, remove } from './api';
import { dialogs, type Question } from './dialogs.svelte';
import { session } from './session.svelte';
import { attempt, toasts } from './toasts.svelte';
import type { MetaMember, Membership, Rebalanced } from './types';

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

/** Spreads the clients over the nodes, after a confirmation with the numbers that the node has computed. */
export async function rebalance(): Promise<boolean> {
  let planned: Rebalanced | undefined;
  await attempt(async () => {
    planned = await post<Rebalanced>('/api/v1/rebalance', { dry_run: true });
  });
  if (!planned) return false;
  const { nodes, tolerance_percent: tolerance } = planned;
  const many = nodes.filter((node) => node.keep !== null);
  const silent = nodes.filter((node) => node.connections === null).map((node) => node.node);
  const unknown = silent.length > 0 ? `No answer from ${silent.join(', ')}: it does not count.` : '';
  if (many.length === 0) {
    toasts.good(`No node has more than ${tolerance} % above the mean`, unknown);
    return false;
  }
  const numbers = many.map((node) => `${node.node}: ${node.connections} to ${node.keep}`).join(', ');
  const text = [`Nodes with more clients than the mean and ${tolerance} % disconnect the others, which connect again. ${numbers}.`, unknown].filter(Boolean).join(' ');
  const answer = await dialogs.ask({ title: 'Rebalance the clients?', text, action: 'Rebalance' });
  if (!answer.yes) return false;
  return attempt(async () => {
    await post<Rebalanced>('/api/v1/rebalance', { tolerance_percent: tolerance });
    return begin(sentences.rebalance.done);
  });
}
