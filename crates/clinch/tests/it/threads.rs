//! Intake and workers have threads of their own.

use crate::world::{PATIENCE, World, worker_with_step};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;

/// All that comes up to the end of its body, which is a JSON object without another in it.
fn read(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut came = Vec::new();
    while !came.ends_with(b"}") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).unwrap();
        assert_ne!(length, 0, "it ends too soon: {}", String::from_utf8_lossy(&came));
        came.extend_from_slice(&piece[..length]);
    }
    String::from_utf8(came).unwrap()
}

fn send(to: SocketAddr) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    let head = "POST /hooks/orders HTTP/1.1\r\nhost: clinch\r\nidempotency-key: k-1\r\ncontent-length: 11\r\n\r\n";
    stream.write_all(format!("{head}{{\"order\":7}}").as_bytes()).unwrap();
    read(&mut stream)
}

fn take_one(target: &TcpListener) -> String {
    let (mut stream, _) = target.accept().unwrap();
    let call = read(&mut stream);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    call
}

/// A test has one thread, and everything of the house but intake and workers runs on it.
#[tokio::test]
async fn p10_who_keeps_all_other_threads_busy_holds_up_neither_events_nor_jobs() {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/charge", target.local_addr().unwrap());
    let step = format!("  - name: charge\n    http: {{url: \"{url}\", body_from: body, idempotency: header}}\n");
    let world = World::new(&[("workers/charge.yml", &worker_with_step(&step))]).await;
    let (intake, (tell, told)) = (world.app().intake.unwrap(), mpsc::channel());
    std::thread::spawn(move || {
        let answer = send(intake);
        tell.send((answer, take_one(&target)))
    });
    let (answer, call) = told.recv_timeout(PATIENCE).expect("it was taken and done while this thread did nothing else");
    assert!(answer.starts_with("HTTP/1.1 202"), "{answer}");
    assert!(call.starts_with("POST /charge") && call.ends_with(r#"{"order":7}"#), "{call}");
    world.close_and_verify().await;
}
