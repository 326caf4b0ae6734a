//! A TCP proxy that can be cut.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

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
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut state) = (server.clone(), state.clone());
                let (began, muted) = (state.borrow().interruptions, state.clone());
                connections.spawn(async move {
                    let ends = |state: &State| state.is_cut || state.interruptions != began;
                    tokio::select! {
                        biased;
                        _ = state.wait_for(ends) => {}
                        // An error ends the connection.
                        _ = pass(client, &server, muted) => {}
                    }
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

    /// Breaks all connections. Later ones work.
    pub fn interrupt(&self) {
        self.state.send_modify(|state| {
            state.is_muted = false;
            state.interruptions += 1;
        });
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
