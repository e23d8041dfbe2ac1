//! Counters of faults and checks. A counter that stays 0 means that nothing of its kind was tested.

use crate::simulation::Shape;

macro_rules! report {
    ($($(#[doc = $doc:literal])* $field:ident,)+) => {
        /// Counters of one simulation, or the sum of many.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Report {
            $($(#[doc = $doc])* pub $field: u64,)+
        }

        impl Report {
            /// Adds the counters of another report.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }

            /// Each counter with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)+].into_iter()
            }
        }
    };
}

report! {
    /// Simulations.
    seeds,
    /// Seconds of virtual time.
    seconds,
    events,
    /// Starts of the node's process.
    starts,
    power_cuts,
    /// Power cuts in the middle of a disk operation.
    power_cuts_in_operations,
    /// Power cuts while the node was starting.
    power_cuts_at_start,
    kills,
    stops,
    disks_full,
    /// Publishes that were refused because the disk was full.
    refused_when_full,
    syncs_failed,
    sectors_lost,
    writes_torn,
    names_lost,
    bits_flipped,
    /// Starts that cut a torn commit.
    tails_cut,
    clock_jumps,
    /// Processes that stood still for longer than Keep Alive allows.
    process_pauses,
    reboots,
    connections,
    connections_lost,
    /// Connections lost in the middle of a packet.
    half_delivered,
    partitions,
    takeovers,
    resumed,
    /// Sessions that clients found expired.
    expired,
    checkpoints,
    segments_freed,
    /// Messages read back from the disk.
    reads,
    reads_failed,
    published_qos0,
    published_qos1,
    published_qos2,
    /// Publishes repeated with DUP.
    repeated,
    /// Deliveries with DUP.
    redelivered,
    by_old_clients,
    by_new_clients,
    /// Packets that violate the protocol, such as acknowledgements of messages that were never sent.
    hostile,
    /// Messages that were owed to a session and arrived.
    check_delivered,
    /// QoS 2 messages that arrived at a session.
    check_once,
    /// Repeated QoS 2 messages that were recognized by their Packet Identifier.
    check_identifiers,
    check_order,
    check_retained,
    check_retained_deleted,
    /// Retained messages that a subscription had to bring, and subscriptions that continued over another connection.
    check_retained_came,
    retained_scans_resumed,
    check_wills_came,
    check_wills_taken_back,
    check_wills_delayed,
    check_wills_after_a_crash,
    /// Wills of clients that lost the right to publish them before they were due.
    check_wills_denied,
    /// Packets that arrived while the process stood still: no client is closed for silence before they are read.
    check_read_after_pause,
    check_session_present,
    check_session_expired,
    check_groups,
    check_expiry,
    check_answered,
    check_limits,
    check_one_connection,
    check_clock,
    check_silent_after_failure,
    check_invariants,
    check_after_last_crash,
    /// Logs with a flipped bit that were refused, and those that were completely readable.
    check_damage_refused,
    check_damage_harmless,
    /// Parts of checkpoints, and entries, that were compared after a flip.
    check_damage_parts,
    check_damage_entries,
    /// Excuse of the oracle: acknowledged messages that were not owed any more because the session had ended.
    excused_session_ended,
    /// Excuse: messages that were not owed any more because their subscription was about to change.
    excused_unsubscribed,
    /// Excuse: acknowledged messages that may have expired, or that their publisher had given up.
    excused_given_up,
    /// Excuse: missing messages that a full queue may have dropped.
    excused_by_full_queue,
    /// Excuses for QoS 2 messages that arrived twice. The publisher had repeated them and given up its session. It may
    /// have repeated them in another session. They were for a shared group. They were repeated, and the receiver's
    /// session ends with its connection.
    excused_twice_given_up,
    excused_twice_in_other_session,
    excused_twice_in_group,
    excused_twice_not_durable,
    /// Excuse: messages that a client took for others because it did not know whether its session had ended.
    excused_doubtful,
    /// Excuses for Wills. The client came back when they were nearly due, or while two of its CONNECTs were on their
    /// way.
    excused_wills_unclear,
    excused_wills_in_doubt,
    /// Excuse: topics without a retained message, because the write may have been refused or deleted.
    excused_retained,
    /// Excuse: retained messages for a SUBSCRIBE that arrived before its SUBACK.
    excused_retained_early,
    /// Starts of a cluster's node after the first.
    cluster_restarts,
    /// Partitions between groups of nodes.
    cluster_partitions,
    /// Nodes that reached another and were not reached by it.
    cluster_one_way,
    /// Nodes that were cut off from all others until they ended.
    cluster_cut_off,
    /// Power cuts that were over before the other nodes had noticed.
    cluster_short_power_cuts,
    cluster_slow,
    cluster_flaps,
    /// Lost connections between nodes.
    cluster_connections_lost,
    /// Pieces that were lost with these connections.
    cluster_pieces_lost,
    /// Connections between nodes that carried nothing while one end took them for open.
    cluster_half_open,
    /// Writes to another node that were blocked by a slow network.
    cluster_writes_blocked,
    /// Restarts of nodes because a sync of their disks had failed.
    cluster_disks_failed,
    /// Requests of a node for the retained messages that it missed while its disk was full.
    cluster_retained_requests,
    cluster_relayed,
    /// Frames that were retransmitted after the loss of a connection.
    cluster_retransmitted,
    /// Actions of the client that violates the protocol.
    cluster_hostile,
    /// Clients that stopped for a while.
    cluster_client_pauses,
    /// Processes of nodes that stood still.
    cluster_process_pauses,
    /// Unauthenticated connections that exceeded the limit, that repeated the handshake of a node, and that continued
    /// without a valid proof.
    cluster_unauthenticated_excess,
    cluster_unauthenticated_replayed,
    cluster_unauthenticated_wrong_proof,
    cluster_accepted,
    /// Incarnations of nodes that the cores declared dead.
    cluster_nodes_declared_dead,
    /// SUBACKs that waited for the region, and for the whole cluster.
    cluster_subacks_region,
    cluster_subacks_cluster,
    /// Messages that were acknowledged after more than a second.
    cluster_slow_acknowledgements,
    /// Members that joined shared groups, and members that left them and stayed connected.
    cluster_groups_joined,
    cluster_groups_left,
    cluster_retained,
    cluster_retained_deleted,
    /// Retained messages that arrived at new subscribers.
    cluster_retained_received,
    /// Messages that were owed to a session on the publisher's node and arrived.
    cluster_check_delivered,
    /// Messages that were owed to a session on another node and arrived.
    cluster_check_delivered_across,
    /// Messages that only a node had that was cut off and ended: none may be acknowledged.
    cluster_check_cut_off,
    /// Owed messages that arrived after the last fault.
    cluster_check_settled,
    cluster_check_asked,
    cluster_check_once,
    cluster_check_order,
    /// Messages that were owed to a shared group and arrived.
    cluster_check_groups,
    /// Messages of shared groups that arrived at a member on another node.
    cluster_check_groups_across,
    /// Messages of shared groups that arrived although a member had gone meanwhile.
    cluster_check_groups_handed_over,
    /// Messages of shared groups that arrived exactly once after the last fault.
    cluster_check_groups_settled,
    /// QoS 2 messages of a group that came from another node.
    cluster_check_groups_once,
    /// Nodes that had the same retained messages as another.
    cluster_check_retained_same,
    /// Topics whose retained message is the last write, and deleted topics without one.
    cluster_check_retained_last,
    cluster_check_retained_deleted,
    /// Clients that had stopped and found their connection again.
    cluster_check_resumed,
    /// Unauthenticated connections that were rejected, by their behaviour.
    cluster_check_garbage,
    cluster_check_oversized,
    cluster_check_wrong_secret,
    cluster_check_wrong_cluster,
    cluster_check_replay,
    cluster_check_slow,
    cluster_check_flood,
    /// Links whose nodes both, one or none had the features of this version, and links with features of a later
    /// version.
    cluster_check_features_both,
    cluster_check_features_own,
    cluster_check_features_theirs,
    cluster_check_features_none,
    cluster_check_features_later,
    /// Links over which a correct clock was measured.
    cluster_check_clocks,
    /// Reports that a shard has its new voters, and final placements of shards that all nodes knew.
    cluster_shards_changed,
    cluster_check_placement,
    /// SUBACKs for routes of shards, and checks that a node that may acknowledge knows the routes of a shard.
    cluster_shard_subacks,
    cluster_check_shard_routes,
    /// Checks of running nodes that were declared dead: they may acknowledge nothing.
    cluster_check_dead,
    /// Leases that a node relied on and that the core knew, and those of nodes that the core had removed.
    cluster_check_leases,
    cluster_check_leases_of_removed,
    /// Acknowledged messages for durable sessions whose node had restarted before its peer suspected it. They must not
    /// be lost.
    cluster_check_restarted,
    /// Acknowledged messages that waited for an unreachable node and are still owed.
    cluster_check_waited,
    /// Excuses of the oracle for acknowledged messages that were not owed any more. Half of the cores or more had
    /// restarted since the SUBACK. The session's node had been removed, and its routes were not known again. The
    /// publisher's node could not reach the session's node. The log of that node was full.
    cluster_excused_cores_restarted,
    cluster_excused_removed,
    cluster_excused_unreached,
    cluster_excused_no_room,
    /// Excuse: acknowledged messages that were lost with the publisher's node, which could not reach the session's
    /// node.
    cluster_excused_died,
    /// Excuse: messages that were not owed any more because their subscription was about to change.
    cluster_excused_unsubscribed,
    /// Excuse: messages whose publisher's node had restarted and did not know what only its region knew.
    cluster_excused_region_restarted,
    /// Excuse: QoS 0 messages on connections that ended.
    cluster_excused_qos0,
    /// Excuses for messages that no member of a group had to get any more. Its last witness had left. A node had died
    /// that had a member or the message. All members were unknown or unreachable.
    cluster_excused_groups_left,
    cluster_excused_groups_died,
    cluster_excused_groups_unreached,
    /// Excuses for retained messages. They were older than an acknowledged write, because a deletion may have come
    /// between. A topic had none although a write had been acknowledged, because it was deleted. A write may exist only
    /// on a node that is off.
    cluster_excused_retained_older,
    cluster_excused_retained_deleted,
    cluster_excused_retained_gone,
    /// Times that cores relied on different sets of cores, without two majorities.
    cluster_check_majorities,
    /// Proposals of operators, and those that were accepted, refused, and of unknown outcome.
    cluster_proposed,
    cluster_records_accepted,
    cluster_records_refused,
    cluster_records_unknown,
    /// Cores that left, cores that were removed after their death, replicants that left or were removed, transfers of
    /// the leadership, and nodes that came back with an empty disk.
    cluster_cores_left,
    cluster_cores_removed,
    cluster_replicants_removed,
    cluster_leader_transfers,
    cluster_disks_emptied,
    /// Nodes that came back with an empty disk and a clock behind the one before.
    cluster_clocks_set_back,
    /// Long outages of nodes during which the others worked.
    cluster_check_long_outage,
    /// Updates of copies of records with single changes, and with all records.
    cluster_records_incremental,
    cluster_records_full,
    /// Reads of the log by replicas of the meta group.
    cluster_log_reads,
    /// Changes that were accepted and found on every node, and those that were refused and found on none.
    cluster_check_accepted,
    cluster_check_refused,
    /// Changes that were refused because some core would not have understood them.
    cluster_check_unsupported,
    /// Cores of older versions that did not start from a newer log, and checks that such cores are not members.
    cluster_outdated,
    cluster_check_outdated,
    /// Routes of other nodes that were compared.
    cluster_check_routes,
    /// Pairs of nodes that exchanged messages at the end.
    cluster_check_pairs,
    /// Sessions that were found again.
    cluster_check_sessions,
    cluster_check_memory,
    /// Checks of links that lost no connection and sent nothing twice.
    cluster_check_sent_once,
    quorum_leaders,
    quorum_decided,
    /// Proposals of unknown outcome, and those that were refused.
    quorum_unknown,
    quorum_refused,
    /// Changes of the members that were made.
    quorum_changes,
    quorum_resized,
    quorum_transfers,
    /// Disks that were lost.
    quorum_wiped,
    /// Disks that lost reported writes in a power cut, and bits that flipped while a process did not run.
    quorum_lied,
    quorum_bits_flipped,
    /// Disks that had no room for another segment, and disks that had it again.
    quorum_disks_full,
    quorum_disks_room,
    quorum_pauses,
    quorum_partitions,
    /// Leaders that were cut off, together with a learner that had all entries, from all other voters.
    quorum_learner_partitions,
    quorum_isolated,
    quorum_one_way,
    quorum_connections_lost,
    quorum_frames_lost,
    /// Reads of the log by replicas, and replicas that stopped because such a read failed.
    quorum_log_reads,
    quorum_check_unreadable,
    /// Proposals that were applied while a snapshot was written, and snapshots that were read.
    quorum_overlapped,
    quorum_installed,
    quorum_check_applied,
    quorum_check_read,
    quorum_check_resumed,
    /// Times that records of a replica became durable on a full disk while another user of the log waited for room.
    quorum_check_full,
    /// Replicas that were found to lack confirmed entries. Replicas that did not start, or stopped, because their logs
    /// are damaged. Replicas that started with a flipped bit, and had everything.
    quorum_check_lied,
    quorum_check_damage_refused,
    quorum_check_damage_harmless,
    /// Replicas that reached no other and raised no term.
    quorum_check_isolated,
    quorum_check_kept,
    /// Messages to sessions of shards with replicas: acknowledged, delivered, delivered for a shared subscription, and
    /// delivered after a later one.
    agreed_acknowledged,
    agreed_delivered,
    agreed_shared,
    agreed_again,
    /// Acknowledged messages of durability `memory`, those that were acknowledged before the disks of a majority had
    /// them, and those that a client did not get because a process ended meanwhile.
    agreed_fast,
    agreed_fast_early,
    agreed_fast_lost,
    /// CONNACKs with Session Present.
    agreed_resumed,
    /// States of replicas that were compared.
    agreed_compared,
    agreed_restores_compared,
    /// States that replicas have received from others, and records of messages that were fetched for them.
    agreed_restored,
    agreed_fetched,
    /// Messages that a replica has read from another one, because its disk could not return them.
    agreed_repaired,
    /// Connections that a later leader has served, too.
    agreed_attached,
    /// Requests of connections that served their session no more.
    agreed_stale,
    /// Clients that were refused because a later connection of theirs had the session.
    agreed_overtaken,
    /// Disks that were replaced by empty ones.
    agreed_replaced,
    /// Replicas that moved to other cores, those during whose moves the shard had the same leader, and those that led
    /// when their moves began.
    agreed_moves,
    agreed_moves_led,
    agreed_moves_of_leaders,
    /// Replicas that were removed because their cores were lost before they had caught up.
    agreed_moves_given_up,
    /// Cores that handed their replicas over, and those whose replicas were replaced because they were away.
    agreed_cores_left,
    agreed_cores_lost,
    /// Transfers of the leadership of a shard to the preferred replica, and those that were given up.
    agreed_transfers,
    agreed_transfers_failed,
    /// Clocks of machines that were set to a wrong time, and messages whose Message Expiry Interval was right.
    agreed_clocks_set,
    agreed_check_expiry,
    /// Messages that were retained on common topics, those without a payload, and those that were refused.
    agreed_retained,
    agreed_retained_deleted,
    /// Topics on which a new subscription found a retained message, or none.
    agreed_reads_found,
    agreed_reads_nothing,
    /// Topics on which a message came meanwhile that was not retained, and reads that a lost connection ended.
    agreed_reads_live,
    agreed_reads_broken,
    /// Reads of clients with durable sessions.
    agreed_reads_durable,
    /// Requests for the indexes of shards, and replicas that had not applied the index yet.
    agreed_read_indexes,
    agreed_read_behind,
    /// Pages of retained messages from replicas of the own node, and from leaders on other nodes.
    agreed_read_own_pages,
    agreed_read_leader_pages,
    /// Requests of reads to nodes that did not lead the shard, and reads that ended before they had a page.
    agreed_read_unreadable,
    agreed_read_dropped,
    /// SUBACKs and CONNACKs that waited for other nodes.
    agreed_announced,
    agreed_learned_for_replicas,
    /// Clients that were refused because a node did not know the routes of their sessions in time.
    agreed_busy,
    /// Clients that were refused because their shard did not answer in time.
    agreed_unanswered,
    /// Connections whose own node did not know them in time.
    agreed_overdue,
    /// Acknowledged messages of devices that share Client Identifiers, devices that were taken over, and those that
    /// were refused.
    agreed_devices_served,
    agreed_devices_taken_over,
    agreed_devices_refused,
    /// Wills that were due, those that were due although the clients did not know that they were served, and those that
    /// must not come.
    agreed_wills,
    agreed_wills_unserved,
    agreed_check_wills_withdrawn,
    /// Excuses for Wills whose node was over: the client did not know that it was served, or had sent DISCONNECT.
    /// Excuses for Wills of clients whose DISCONNECT waited at the node, which ended the connection before it read it.
    agreed_excused_wills_unserved,
    agreed_excused_wills_left,
    agreed_excused_wills_unread,
    /// Times at which a reactor began to leave its clients alone, and writes to clients of nodes that had to do so
    /// without a lease: all of them had one.
    agreed_freezes,
    agreed_check_frozen,
    /// Connections that clients have given up when the others declared their nodes dead, which ran.
    agreed_abandoned,
    /// Processes that were stopped after a turn had begun and before it read from sockets, and those that were stopped
    /// before they wrote to clients.
    agreed_paused_before_read,
    agreed_paused_before_write,
    /// Histories of Client Identifiers that are linearizable. Their operations: Claims that resumed a session and those
    /// that did not, last acknowledged messages of connections, and Releases. Operations that may have taken effect.
    agreed_check_owners,
    agreed_check_owners_resumed,
    agreed_check_owners_new,
    agreed_check_owners_served,
    agreed_check_owners_released,
    agreed_check_owners_pending,
    /// Nodes that were declared dead while their processes ran, and went on in another incarnation.
    agreed_incarnations,
    /// Relays of links that began, and that were killed.
    linked_relays,
    linked_relays_killed,
    linked_connections_lost,
    linked_partitions,
    /// Messages that left their publishers, and that arrived at subscribers, also in other clusters.
    linked_published,
    linked_arrivals,
    linked_arrivals_over_links,
    /// Pairs of acknowledged message and subscriber, and those in another cluster.
    linked_check_arrived,
    linked_check_arrived_over_links,
    /// Messages that arrived at members of the group over all clusters, also in other clusters.
    linked_group_arrivals,
    linked_group_arrivals_over_links,
    /// Acknowledged messages that had to arrive at one member of the group.
    linked_check_arrived_in_group,
    /// Sessions of links whose filters were compared, and those that had to have no others.
    linked_check_interest,
    linked_check_interest_exact,
    /// Messages of QoS 1 that arrived again.
    linked_excused_again,
    /// Messages of QoS 1 that a link brought again after their subscriber had subscribed.
    linked_excused_before_subscription,
    /// Acknowledged messages whose subscriber has unsubscribed.
    linked_excused_unsubscribed,
    /// Messages that arrived twice in the group: of QoS 1, or because a process ended.
    linked_excused_twice_in_group,
}

/// Number of simulations from which on each counter has to be greater than 0.
pub const SEEDS_FOR_ALL: u64 = 200;
/// The same for rare excuses of the oracles. An excuse that stays unused has to be narrowed or removed.
const SEEDS_FOR_RARE: u64 = 10_000;
const RARE: [&str; 10] = [
    "excused_twice_given_up",
    "excused_twice_in_other_session",
    "excused_twice_in_group",
    "excused_twice_not_durable",
    "excused_wills_in_doubt",
    "cluster_check_restarted",
    "cluster_excused_no_room",
    "cluster_excused_retained_older",
    "cluster_excused_retained_gone",
    "agreed_excused_wills_unread",
];

impl Report {
    /// Counters of a simulation of this shape.
    pub fn figures(&self, shape: Shape) -> impl Iterator<Item = (&'static str, u64)> {
        let of_both =
            ["seeds", "seconds", "events", "starts", "kills", "power_cuts", "clock_jumps", "disks_full"];
        let not_of_quorum = ["clock_jumps", "disks_full"];
        self.each().filter(move |(name, _)| match shape {
            Shape::Node => {
                !["cluster_", "quorum_", "agreed_", "linked_"].iter().any(|prefix| name.starts_with(prefix))
            }
            Shape::Cluster | Shape::FullCluster => name.starts_with("cluster_") || of_both.contains(name),
            Shape::Quorum => {
                name.starts_with("quorum_") || of_both.contains(name) && !not_of_quorum.contains(name)
            }
            Shape::Linked => {
                name.starts_with("linked_") || of_both.contains(name) && !not_of_quorum.contains(name)
            }
            Shape::Shards | Shape::MovingShards => {
                name.starts_with("agreed_") || of_both.contains(name) && !not_of_quorum.contains(name)
            }
        })
    }

    /// Counters that are 0 and should not be, given the number of simulations.
    pub fn idle(&self, shape: Shape) -> Vec<&'static str> {
        let is_due =
            |name: &&str| self.seeds >= if RARE.contains(name) { SEEDS_FOR_RARE } else { SEEDS_FOR_ALL };
        let zero = self.figures(shape).filter(|(_, figure)| *figure == 0);
        zero.map(|(name, _)| name).filter(is_due).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_counters_are_reported_after_enough_seeds() {
        let idle = |seeds| Report { seeds, ..Report::default() }.idle(Shape::Node);
        assert!(idle(SEEDS_FOR_ALL - 1).is_empty());
        let soon = idle(SEEDS_FOR_ALL);
        assert!(soon.contains(&"kills") && soon.contains(&"excused_session_ended"));
        assert!(!soon.contains(&"excused_wills_in_doubt"));
        assert!(idle(SEEDS_FOR_RARE).contains(&"excused_wills_in_doubt"));
        for name in RARE {
            assert!(Report::default().each().any(|(known, _)| known == name), "{name} is not a counter");
        }
    }
}
