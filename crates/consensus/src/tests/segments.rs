//! Segments of the log for which the owner is asked.

use super::owner::{Owner, config};
use super::*;

#[test]
fn only_an_owner_that_keeps_bodies_is_asked_for_segments() {
    for keeps_bodies in [false, true] {
        let mut owner = Owner::leads_alone(Config { keeps_bodies, ..config() });
        (0..50).for_each(|number| assert!(owner.writes(number)));
        owner.works(20);
        let segment = SegmentId(1);
        let with = |entries, bodies| Vacate { group: STORAGE_GROUPS.entries, segment, entries, bodies };
        let all = [with(Some((1, 35)), vec![]), with(None, vec![7, 9])];
        for vacate in all.clone() {
            owner.replica.vacate(vacate);
        }
        owner.works(50);
        assert_eq!(
            owner.status().snapshot,
            owner.status().applied,
            "the log needs a snapshot for the entries"
        );
        let asked: Vec<Vacate> = std::iter::from_fn(|| owner.replica.poll_vacate()).collect();
        assert_eq!(asked, if keeps_bodies { all.to_vec() } else { vec![] });
        owner.replica.bodies_kept(segment);
        owner.works(5);
        assert_eq!((owner.status().failure, owner.replica.poll_vacate()), (None, None));
    }
}
