//! How often each fault happened and each check compared something: a figure that stays 0 says that nothing of it was tested.

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
    /// Starts that cut a torn commit.
    tails_cut,
    clock_jumps,
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
    check_order,
    check_retained,
    check_retained_deleted,
    check_wills_came,
    check_wills_taken_back,
    check_wills_delayed,
    check_wills_after_a_crash,
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
}

impl Report {
    /// The figures that are 0.
    pub fn idle(&self) -> Vec<&'static str> {
        self.each().filter(|(_, figure)| *figure == 0).map(|(name, _)| name).collect()
    }
}
