//! The settings of the edge: threads and listeners.

use settings::section;

section! {
    /// The threads that serve connections.
    [edge]
    pub struct EdgeSettings {
        /// Threads that serve connections; 0 is one per CPU.
        pub workers: usize = "0" in "0..=1024", at start;
    }
    and {
        /// Where clients connect. Never empty.
        pub listeners: Vec<Listener> = vec![Listener::default()];
    }
}

section! {
    /// One address where clients connect.
    [listener]
    pub struct Listener {
        /// What logs and figures call it; its address when empty.
        pub name: String = "", at start;
        /// `127.0.0.1:1883`, `[::1]:1883`, `0.0.0.0:1883` for every IPv4 address, `[::]:1883` for every address,
        /// `localhost:1883` for all addresses of a name, or `unix:/run/meridian.sock`. Port 0 lets the system choose.
        pub address: String = "127.0.0.1:1883", at start;
        /// Connections of this listener at one time; 0 is no limit of its own.
        pub connections_max: u32 = "0", at start;
        /// New connections a second, at most; others wait in the backlog. 0 is no limit.
        pub connect_rate: u32 = "0", at start;
        /// Connections that the system holds until they are accepted.
        pub backlog: u32 = "1024" in "1..=65535", at start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node without configuration is reachable from its own machine only.
    #[test]
    fn the_default_listener_is_on_loopback() {
        let EdgeSettings { workers, listeners } = EdgeSettings::default();
        assert_eq!(workers, 0);
        let [listener] = listeners.as_slice() else { panic!("one listener") };
        assert_eq!(listener.address, "127.0.0.1:1883");
    }
}
