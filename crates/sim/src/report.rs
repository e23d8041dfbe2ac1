//! How often each fault happened and each check compared something: a figure that stays 0 says that nothing of it was tested.

use crate::simulation::Shape;

macro_rules! report {
    ($($(#[doc = $doc:literal])* $field:ident,)+) => {
        /// Figures of one simulation, or of many.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Report {
            $($(#[doc = $doc])* pub $field: u64,)+
        }

        impl Report {
            /// Adds up.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }

            /// Each figure by its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)+].into_iter()
            }
        }
    };
}

report! {
    /// Simulations.
    seeds,
    /// Virtual seconds.
    seconds,
    events,
    /// Starts of the node's process.
    starts,
    power_cuts,
    /// Of these, in the middle of what the disk was doing.
    power_cuts_in_operations,
    /// Of these, while the node was starting.
    power_cuts_at_start,
    kills,
    stops,
    disks_full,
    /// Publishes that were refused for that.
    refused_when_full,
    syncs_failed,
    sectors_lost,
    writes_torn,
    names_lost,
    bits_flipped,
    /// Starts that cut a torn commit.
    tails_cut,
    clock_jumps,
    /// Processes that stood still for longer than clients may be silent.
    process_pauses,
    reboots,
    connections,
    connections_lost,
    /// Connections lost with bytes of a packet delivered and others not.
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
    /// Publishes sent again, with DUP.
    repeated,
    /// Deliveries with DUP.
    redelivered,
    by_old_clients,
    by_new_clients,
    /// Packets that break rules, and what was acknowledged that had never been sent.
    hostile,
    /// Messages that were owed to a session and came.
    check_delivered,
    /// QoS 2 messages that came to a session.
    check_once,
    /// QoS 2 messages that came again, known by their Packet Identifier.
    check_identifiers,
    check_order,
    check_retained,
    check_retained_deleted,
    /// Retained messages that a subscription had to bring, and those subscriptions that went on to do so over another connection.
    check_retained_came,
    retained_scans_resumed,
    check_wills_came,
    check_wills_taken_back,
    check_wills_delayed,
    check_wills_after_a_crash,
    /// Wills of clients that lost the right to publish them before they were due.
    check_wills_denied,
    /// Packets that came while the process stood still: nobody is closed for silence before they are read.
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
    /// Logs with a flipped bit that were refused, and those of which all could be read.
    check_damage_refused,
    check_damage_harmless,
    /// Parts of checkpoints, and entries, that were compared after such a flip.
    check_damage_parts,
    check_damage_entries,
    /// What the oracle excused. Acknowledged messages that were not owed to a session any more, as it had ended.
    excused_session_ended,
    /// Messages that were not owed any more, as their subscription was about to change.
    excused_unsubscribed,
    /// Acknowledged messages that need not come, as they may have expired or their publisher had given up.
    excused_given_up,
    /// Messages that a full queue may drop, and that did not come.
    excused_by_full_queue,
    /// Messages at QoS 2 that came again: the publisher gave up its session after it had sent them again; it may have sent them in another session;
    /// they were for a shared group; or the receiver's session ends with its connection, and they were sent again.
    excused_twice_given_up,
    excused_twice_in_other_session,
    excused_twice_in_group,
    excused_twice_not_durable,
    /// Messages that came to a session that began after they were acknowledged, as they were sent again.
    excused_sent_again,
    /// Messages that were taken for others, as the client did not know whether its session had ended.
    excused_doubtful,
    /// Wills that may come or not: the client came back when they were nearly due, or while two of its CONNECTs were on their way.
    excused_wills_unclear,
    excused_wills_in_doubt,
    /// Topics on which nothing was retained, as the write may have been refused or deleted.
    excused_retained,
    /// Starts of a node of a cluster after the first.
    cluster_restarts,
    /// Groups of nodes that did not reach each other.
    cluster_partitions,
    /// Nodes that reached another and were not reached by it.
    cluster_one_way,
    /// Nodes that were cut off from all others until they ended.
    cluster_cut_off,
    /// Nodes whose power went and was back before the others had noticed.
    cluster_short_power_cuts,
    cluster_slow,
    cluster_flaps,
    /// Connections between nodes that were lost.
    cluster_connections_lost,
    /// What was under way on them and never arrived.
    cluster_pieces_lost,
    /// Connections between nodes that carried nothing any more while an end took them for open.
    cluster_half_open,
    /// Times that a node could not write to another for the network's slowness.
    cluster_writes_blocked,
    /// Nodes that were started again because a sync of their disks had failed.
    cluster_disks_failed,
    /// Times that a node asked others for what they had retained while its disk was full.
    cluster_retained_requests,
    cluster_relayed,
    /// Frames that went again after a lost connection.
    cluster_retransmitted,
    /// What a client did that keeps to no rules.
    cluster_hostile,
    /// Clients that stopped for a while.
    cluster_client_pauses,
    /// Processes of nodes that stood still.
    cluster_process_pauses,
    /// Strangers at cluster ports that found too many there, that said what a node had said before, and that went on although they could not
    /// prove themselves.
    cluster_unauthenticated_excess,
    cluster_unauthenticated_replayed,
    cluster_unauthenticated_wrong_proof,
    cluster_accepted,
    /// Lives of nodes that cores agreed to be dead.
    cluster_nodes_declared_dead,
    /// SUBACKs to whom all nodes were to know of it.
    cluster_subacks_region,
    cluster_subacks_cluster,
    /// Messages that were acknowledged after more than a second.
    cluster_slow_acknowledgements,
    /// Members that shared groups took in, and members that left them and stayed connected.
    cluster_groups_joined,
    cluster_groups_left,
    cluster_retained,
    cluster_retained_deleted,
    /// Retained messages that came to those who subscribed.
    cluster_retained_received,
    /// Messages that were owed to a session of the publisher's node and came.
    cluster_check_delivered,
    /// Of another node.
    cluster_check_delivered_across,
    /// Messages that a node had taken since it was cut off, and that only it had when it ended: none may be acknowledged.
    cluster_check_cut_off,
    /// When nothing went wrong any more.
    cluster_check_settled,
    cluster_check_asked,
    cluster_check_once,
    cluster_check_order,
    /// Messages that a shared group had to get and got.
    cluster_check_groups,
    /// Of these, those that a member on another node got.
    cluster_check_groups_across,
    /// Of these, those that came although a member had gone meanwhile.
    cluster_check_groups_handed_over,
    /// When nothing went wrong any more: each of them once.
    cluster_check_groups_settled,
    /// QoS 2 messages of a group that came from another node.
    cluster_check_groups_once,
    /// Nodes that had retained the same as another.
    cluster_check_retained_same,
    /// Topics whose last write was what is retained, and those of which nothing is, as it was deleted.
    cluster_check_retained_last,
    cluster_check_retained_deleted,
    /// Clients that had stopped and found their connection again.
    cluster_check_resumed,
    /// Strangers that were turned away, by what they did.
    cluster_check_garbage,
    cluster_check_oversized,
    cluster_check_wrong_secret,
    cluster_check_wrong_cluster,
    cluster_check_replay,
    cluster_check_slow,
    cluster_check_flood,
    /// Links of which both nodes, one or none could all that this version can; and those where one could what this version does not know.
    cluster_check_features_both,
    cluster_check_features_own,
    cluster_check_features_theirs,
    cluster_check_features_none,
    cluster_check_features_later,
    /// Links over which a clock was asked for that is right.
    cluster_check_clocks,
    /// Looks at a node that runs and is agreed to be dead: it may acknowledge nothing.
    cluster_check_dead,
    /// Running leases that a node counted on and that the core had not forgotten; and those of nodes that were no members for the core any more.
    cluster_check_leases,
    cluster_check_leases_of_removed,
    /// Acknowledged messages for durable sessions whose node had restarted before its peer suspected it: they may not be lost.
    cluster_check_restarted,
    /// Acknowledged messages that waited for a node that could not be reached, and are owed all the same.
    cluster_check_waited,
    /// What the oracle excused. Acknowledged messages that were not owed any more: half of the cores or more had restarted since the SUBACK; the
    /// session's node had been removed, and its sessions were not known again; the publisher's node could not reach the session's; or that one's log
    /// had no room.
    cluster_excused_cores_restarted,
    cluster_excused_removed,
    cluster_excused_unreached,
    cluster_excused_no_room,
    /// Acknowledged messages that were lost with the publisher's node, which could not reach the session's.
    cluster_excused_died,
    /// Messages that were not owed any more, as their subscription was about to change.
    cluster_excused_unsubscribed,
    /// Messages that were not owed, as the publisher's node had restarted and did not know what only its region knew.
    cluster_excused_region_restarted,
    /// Messages at QoS 0 that had been sent over connections that ended.
    cluster_excused_qos0,
    /// Messages that no member of a group had to get any more: its last witness had left; a node had died that had a member, or the message; or all
    /// members were unknown or unreached.
    cluster_excused_groups_left,
    cluster_excused_groups_died,
    cluster_excused_groups_unreached,
    /// Retained messages that were older than an acknowledged write, as a deletion may have come between; topics where nothing was retained though a
    /// write had been acknowledged, as it was deleted; and writes that only a node may have that is gone.
    cluster_excused_retained_older,
    cluster_excused_retained_deleted,
    cluster_excused_retained_gone,
    /// Times that cores went by different sets of cores, of which no two had a majority each.
    cluster_check_majorities,
    /// What operators proposed, what was agreed upon and refused of it, and what nobody knows of.
    cluster_proposed,
    cluster_records_accepted,
    cluster_records_refused,
    cluster_records_unknown,
    /// Cores that left, that were removed when they were dead, replicants that did one of the two, wishes that another core leads, and nodes that
    /// came back with an empty disk.
    cluster_cores_left,
    cluster_cores_removed,
    cluster_replicants_removed,
    cluster_leader_transfers,
    cluster_disks_emptied,
    /// Of these, with a clock that said less than before.
    cluster_clocks_set_back,
    /// Nodes without which the others got along, and which then came back.
    cluster_check_long_outage,
    /// Copies of records that were told single changes, and the whole.
    cluster_records_incremental,
    cluster_records_full,
    /// Changes that were agreed upon and found on every node, and those that were refused and found on none.
    cluster_check_accepted,
    cluster_check_refused,
    /// Changes that were refused because some core would not have understood them.
    cluster_check_unsupported,
    /// Cores of versions before that did not start from what was agreed upon, and looks at such that are no members.
    cluster_outdated,
    cluster_check_outdated,
    /// Routes of other nodes that were compared.
    cluster_check_routes,
    /// Pairs of nodes that exchanged messages in the end.
    cluster_check_pairs,
    /// Sessions that were found again.
    cluster_check_sessions,
    cluster_check_memory,
    /// Links that lost no connection and sent nothing twice.
    cluster_check_sent_once,
    quorum_leaders,
    quorum_decided,
    /// Proposals whose fate was unknown, and those that were refused.
    quorum_unknown,
    quorum_refused,
    /// Changes of the members that were made.
    quorum_changes,
    quorum_resized,
    quorum_transfers,
    /// Disks that were lost.
    quorum_wiped,
    /// Disks that had said to have written what they had not, when the power went; and bits that flipped while a process was not there.
    quorum_lied,
    quorum_bits_flipped,
    /// Disks that had no room for another segment, and had it again.
    quorum_disks_full,
    quorum_disks_room,
    quorum_pauses,
    quorum_partitions,
    quorum_isolated,
    quorum_one_way,
    quorum_connections_lost,
    quorum_frames_lost,
    quorum_check_applied,
    quorum_check_read,
    quorum_check_resumed,
    /// Times that something of a replica became durable on a full disk, where something else of its node waited for room.
    quorum_check_full,
    /// Replicas that were found to lack what they had promised; those that did not begin, or stopped, as their logs are damaged; and those that
    /// began with a bit that has flipped, and had everything.
    quorum_check_lied,
    quorum_check_damage_refused,
    quorum_check_damage_harmless,
    /// Replicas that reached nobody and raised no term.
    quorum_check_isolated,
    quorum_check_kept,
}

/// With fewer simulations some of it may rightly not have happened.
pub const SEEDS_FOR_ALL: u64 = 200;
/// And some only with fewer than these: excuses of the oracles that rarely hold. One that does not in so many is to be narrowed, or removed.
const SEEDS_FOR_RARE: u64 = 10_000;
const RARE: [&str; 10] = [
    "excused_twice_given_up",
    "excused_twice_in_other_session",
    "excused_twice_in_group",
    "excused_twice_not_durable",
    "excused_sent_again",
    "excused_wills_in_doubt",
    "cluster_check_restarted",
    "cluster_excused_no_room",
    "cluster_excused_retained_older",
    "cluster_excused_retained_gone",
];

impl Report {
    /// The figures of a simulation of this shape.
    pub fn figures(&self, shape: Shape) -> impl Iterator<Item = (&'static str, u64)> {
        let of_both =
            ["seeds", "seconds", "events", "starts", "kills", "power_cuts", "clock_jumps", "disks_full"];
        let not_of_quorum = ["clock_jumps", "disks_full"];
        self.each().filter(move |(name, _)| match shape {
            Shape::Node => !name.starts_with("cluster_") && !name.starts_with("quorum_"),
            Shape::Cluster | Shape::FullCluster => name.starts_with("cluster_") || of_both.contains(name),
            Shape::Quorum => {
                name.starts_with("quorum_") || of_both.contains(name) && !not_of_quorum.contains(name)
            }
        })
    }

    /// Those of them that are 0, and should not be after so many simulations.
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
    fn what_never_happened_is_told_after_enough_seeds() {
        let idle = |seeds| Report { seeds, ..Report::default() }.idle(Shape::Node);
        assert!(idle(SEEDS_FOR_ALL - 1).is_empty());
        let soon = idle(SEEDS_FOR_ALL);
        assert!(soon.contains(&"kills") && soon.contains(&"excused_session_ended"));
        assert!(!soon.contains(&"excused_sent_again"));
        assert!(idle(SEEDS_FOR_RARE).contains(&"excused_sent_again"));
        for name in RARE {
            assert!(Report::default().each().any(|(known, _)| known == name), "{name} is no figure");
        }
    }
}
