use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::Pool;

fn counts(pool: &Pool, parts: usize, claiming: bool) -> Vec<usize> {
    let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
    let work = |part: usize| {
        counts[part].fetch_add(1, Ordering::Relaxed);
    };
    if claiming { pool.run_claiming(parts, &work) } else { pool.run(parts, &work) }.unwrap();
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_part_runs_once() {
    for threads in 0..=5 {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads.max(1));
        for parts in [0, 1, 2, 3, 7, 64, 1000] {
            for claiming in [false, true] {
                assert_eq!(counts(&pool, parts, claiming), vec![1; parts], "{threads} {parts} {claiming}");
            }
        }
    }
}

#[test]
fn parts_are_split_evenly_and_in_order() {
    let pool = Pool::new(3).unwrap();
    let owners = Mutex::new(vec![None; 10]);
    pool.run(10, &|part| owners.lock().unwrap()[part] = Some(thread::current().id())).unwrap();
    let owners = owners.into_inner().unwrap();
    let groups: Vec<&[Option<thread::ThreadId>]> = vec![&owners[0..3], &owners[3..6], &owners[6..10]];
    for group in &groups {
        assert!(group.iter().all(|owner| *owner == group[0]));
    }
    assert_eq!(groups.iter().map(|group| group[0]).collect::<HashSet<_>>().len(), 3);
    assert_eq!(owners[0], Some(thread::current().id()));
}

#[test]
fn workers_wake_after_sleep_and_between_short_regions() {
    let pool = Pool::new(2).unwrap();
    for round in 0..3000 {
        assert_eq!(counts(&pool, 4, round % 2 == 0), [1; 4]);
        // Around the time at which a worker goes to sleep.
        if round % 50 == 0 {
            thread::sleep(Duration::from_micros(round));
        } else if round % 7 == 0 {
            let start = std::time::Instant::now();
            while start.elapsed() < Duration::from_micros(48) {}
        }
    }
}

#[test]
fn a_panic_is_an_error_and_the_pool_lives_on() {
    for threads in [1, 2, 4] {
        let pool = Pool::new(threads).unwrap();
        for guilty in [0, 5, 11] {
            for claiming in [false, true] {
                let work = |part: usize| assert!(part != guilty, "part {part} is guilty");
                let outcome = if claiming { pool.run_claiming(12, &work) } else { pool.run(12, &work) };
                let message = outcome.unwrap_err().to_string();
                assert!(message.contains(&format!("part {guilty} is guilty")), "{message}");
                assert_eq!(counts(&pool, 12, claiming), [1; 12]);
            }
        }
        assert!(pool.run(12, &|_| panic!("all of them")).is_err());
        assert_eq!(counts(&pool, 12, false), [1; 12]);
    }
}

#[test]
fn several_callers_and_nested_regions_do_not_block() {
    let pool = Pool::new(2).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..300 {
                    assert_eq!(counts(&pool, 9, true), [1; 9]);
                }
            });
        }
    });
    let sum = AtomicUsize::new(0);
    pool.run(4, &|_| {
        pool.run(5, &|_| {
            sum.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    })
    .unwrap();
    assert_eq!(sum.into_inner(), 20);
}
