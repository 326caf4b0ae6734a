//! A TCP proxy that can be cut.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::battery::within;

/// A proxy in front of one server. It ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    _serving: JoinSet<()>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Every connection breaks.
    is_cut: bool,
    /// Clients get nothing from the server.
    is_muted: bool,
    /// How often all connections were broken.
    interruptions: u32,
    /// How many connections there were.
    accepted: u32,
    /// How many of them have ended.
    ended: u32,
}

// === impl Proxy ===

impl Proxy {
    /// A proxy for the server at this address, `host:port`.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (sender, state) = watch::channel(State::default());
        let (server, mut serving) = (server.to_owned(), JoinSet::new());
        let counted = sender.clone();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let mut began = 0;
                counted.send_modify(|state| {
                    state.accepted += 1;
                    began = state.interruptions;
                });
                let (server, mut state) = (server.clone(), state.clone());
                let (muted, counted) = (state.clone(), counted.clone());
                connections.spawn(async move {
                    let ends = |state: &State| state.is_cut || state.interruptions != began;
                    tokio::select! {
                        biased;
                        _ = state.wait_for(ends) => {}
                        // An error ends the connection.
                        _ = pass(client, &server, muted) => {}
                    }
                    counted.send_modify(|state| state.ended += 1);
                });
            }
        });
        Self {
            address,
            state: sender,
            _serving: serving,
        }
    }

    /// Its own address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks all connections, and each new one, from now on.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.is_cut = true);
    }

    /// From now on clients get nothing from the server, which still gets what they send.
    pub fn mute(&self) {
        self.state.send_modify(|state| state.is_muted = true);
    }

    /// Breaks all connections, and returns when they have passed their last byte and a client has connected again.
    /// Later connections work.
    ///
    /// # Panics
    /// When nothing connects again.
    pub async fn interrupt(&self) {
        let mut state = self.state.subscribe();
        let accepted = state.borrow_and_update().accepted;
        self.state.send_modify(|state| {
            state.is_muted = false;
            state.interruptions += 1;
        });
        let is_new = |state: &State| state.ended >= accepted && state.accepted > accepted;
        let connected = within("a new connection", state.wait_for(is_new)).await;
        connected.expect("the proxy runs");
    }
}

/// Passes bytes on in both directions until one of them ends.
async fn pass(
    client: TcpStream,
    server: &str,
    mut state: watch::Receiver<State>,
) -> std::io::Result<()> {
    let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
    let (mut from_client, mut to_client) = client.into_split();
    let down = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = from_server.read(&mut buffer).await?;
            // It fails when the proxy ends.
            let _ = state.wait_for(|state| !state.is_muted).await;
            if length == 0 {
                return Ok(());
            }
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    tokio::select! {
        copied = copy(&mut from_client, &mut to_server) => copied.map(|_| ()),
        ended = down => ended,
    }
}
