//! Exact accounting of arrivals in one publisher -> subscriber stream.

use std::collections::BTreeMap;

#[derive(Debug, PartialEq, Clone, Copy)]
pub enum Kind {
    /// The next message in order, or after a gap.
    New,
    /// The first arrival, but after a later message.
    Late,
    Dup,
}

#[derive(Default, Clone)]
pub struct Stream {
    /// Highest received sequence number + 1.
    pub next: u64,
    /// Sequence numbers below `next` that have not arrived: start -> end (exclusive).
    missing: BTreeMap<u64, u64>,
    pub uniq: u64,
    pub dup: u64,
    pub late: u64,
    pub last_rx: u64,
    pub max_gap: u64,
    /// Start of the longest gap.
    pub max_gap_at: u64,
}

impl Stream {
    #[inline]
    pub fn on(&mut self, seq: u64, now: u64) -> Kind {
        let gap = now.saturating_sub(self.last_rx);
        if gap > self.max_gap {
            self.max_gap = gap;
            self.max_gap_at = self.last_rx;
        }
        self.last_rx = now;
        if seq == self.next {
            self.next += 1;
            self.uniq += 1;
            return Kind::New;
        }
        self.slow(seq)
    }

    #[cold]
    fn slow(&mut self, seq: u64) -> Kind {
        if seq > self.next {
            self.missing.insert(self.next, seq);
            self.next = seq + 1;
            self.uniq += 1;
            return Kind::New;
        }
        if let Some((&s, &e)) = self.missing.range(..=seq).next_back()
            && seq < e
        {
            self.missing.remove(&s);
            if s < seq {
                self.missing.insert(s, seq);
            }
            if seq + 1 < e {
                self.missing.insert(seq + 1, e);
            }
            self.uniq += 1;
            self.late += 1;
            return Kind::Late;
        }
        self.dup += 1;
        Kind::Dup
    }

    #[cfg(test)]
    pub fn has(&self, seq: u64) -> bool {
        if seq >= self.next {
            return false;
        }
        self.missing.range(..=seq).next_back().is_none_or(|(_, &e)| seq >= e)
    }

    /// Ranges [start, end) of sequence numbers below `sent` that never arrived.
    pub fn missing(&self, sent: u64) -> Vec<(u64, u64)> {
        let mut v: Vec<(u64, u64)> = vec![];
        for (&s, &e) in self.missing.range(..sent) {
            v.push((s, e.min(sent)));
        }
        if self.next < sent {
            v.push((self.next, sent));
        }
        v
    }
}

/// Arrivals of one publisher's messages in one shared-subscription group.
#[derive(Default, Clone)]
pub struct Bits {
    w: Vec<u64>,
}

impl Bits {
    /// Sets a bit. Returns true when it was not yet set.
    #[inline]
    pub fn set(&mut self, seq: u64) -> bool {
        let i = (seq >> 6) as usize;
        if i >= self.w.len() {
            self.w.resize((i + 1).max(self.w.len() * 2).max(16), 0);
        }
        let m = 1u64 << (seq & 63);
        let new = self.w[i] & m == 0;
        self.w[i] |= m;
        new
    }
    pub fn has(&self, seq: u64) -> bool {
        let i = (seq >> 6) as usize;
        i < self.w.len() && self.w[i] & (1 << (seq & 63)) != 0
    }
    pub fn clear(&mut self, seq: u64) {
        let i = (seq >> 6) as usize;
        if i < self.w.len() {
            self.w[i] &= !(1 << (seq & 63));
        }
    }
    pub fn count(&self) -> u64 {
        self.w.iter().map(|x| x.count_ones() as u64).sum()
    }
    /// Adds the other's bits; returns the number of bits set in both.
    pub fn merge(&mut self, o: &Bits) -> u64 {
        if self.w.len() < o.w.len() {
            self.w.resize(o.w.len(), 0);
        }
        let mut both = 0;
        for (a, b) in self.w.iter_mut().zip(&o.w) {
            both += (*a & *b).count_ones() as u64;
            *a |= *b;
        }
        both
    }
    pub fn missing(&self, sent: u64) -> Vec<(u64, u64)> {
        let mut v: Vec<(u64, u64)> = vec![];
        let mut s = 0;
        while s < sent {
            if self.has(s) {
                s += 1;
                continue;
            }
            let a = s;
            while s < sent && !self.has(s) {
                s += 1;
            }
            v.push((a, s));
        }
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn messages_in_order_are_new() {
        let mut s = Stream::default();
        for i in 0..100 {
            assert_eq!(s.on(i, i), Kind::New);
        }
        assert_eq!((s.uniq, s.dup, s.late), (100, 0, 0));
        assert!(s.missing(100).is_empty());
        assert_eq!(s.missing(103), vec![(100, 103)]);
    }

    #[test]
    fn gaps_late_messages_and_duplicates_are_distinguished() {
        let mut s = Stream::default();
        assert_eq!(s.on(0, 0), Kind::New);
        assert_eq!(s.on(5, 0), Kind::New); // 1..5 missing
        assert_eq!(s.on(3, 0), Kind::Late);
        assert_eq!(s.on(3, 0), Kind::Dup);
        assert_eq!(s.on(5, 0), Kind::Dup);
        assert_eq!(s.on(0, 0), Kind::Dup);
        assert_eq!(s.on(6, 0), Kind::New);
        assert_eq!(s.missing(7), vec![(1, 3), (4, 5)]);
        assert!(s.has(3) && !s.has(4) && !s.has(1) && s.has(6) && !s.has(7));
        assert_eq!(s.on(1, 0), Kind::Late);
        assert_eq!(s.on(2, 0), Kind::Late);
        assert_eq!(s.on(4, 0), Kind::Late);
        assert!(s.missing(7).is_empty());
        assert_eq!((s.uniq, s.dup, s.late), (7, 3, 4));
    }

    #[test]
    fn the_longest_gap_is_recorded() {
        let mut s = Stream { last_rx: 1000, ..Default::default() };
        s.on(0, 1010);
        s.on(1, 1500);
        s.on(2, 1520);
        assert_eq!((s.max_gap, s.max_gap_at), (490, 1010));
    }

    #[test]
    fn a_stream_agrees_with_a_model() {
        let mut random = crate::random::Random::new(0);
        let mut rnd = move || random.next();
        for _ in 0..200 {
            let mut s = Stream::default();
            let mut b = Bits::default();
            let mut set = HashSet::new();
            let mut dup = 0;
            for _ in 0..300 {
                let q = rnd() % 200;
                let k = s.on(q, 0);
                assert_eq!(b.set(q), !set.contains(&q));
                if !set.insert(q) {
                    dup += 1;
                    assert_eq!(k, Kind::Dup);
                }
            }
            assert_eq!(s.uniq as usize, set.len());
            assert_eq!(b.count() as usize, set.len());
            assert_eq!(s.dup, dup);
            let miss: u64 = s.missing(250).iter().map(|(a, b)| b - a).sum();
            assert_eq!(miss as usize, 250 - set.len());
            assert_eq!(s.missing(250), b.missing(250));
            for q in 0..250 {
                assert_eq!(s.has(q), set.contains(&q));
            }
        }
    }

    #[test]
    fn a_merge_counts_the_overlap() {
        let (mut a, mut b) = (Bits::default(), Bits::default());
        for i in 0..100 {
            a.set(i);
        }
        for i in 90..200 {
            b.set(i);
        }
        assert_eq!(a.merge(&b), 10);
        assert_eq!(a.count(), 200);
    }
}
